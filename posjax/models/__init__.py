"""Models of Flax NNX, and the parts of which they are made. They take any scheme, and name none.

embedding          token embeddings, with the positions of places 0 and 1
blocks             attention and a feed-forward layer with residuals and norms, and stacks of them
transformer        a decoder, or an encoder, over tokens
encoder_decoder    a Transformer of two sides
encoders           encoders of texts: Transformers, recurrent networks, a CNN, FastText
plans              plans of published models: sizes, schemes, norms and activations, no weights
pretrained         models of such plans, with the norms, readouts and experts that they have
filling            models filled with given weights, and weights written out again
generate           sampling from a decoder
layer_sets         real and complex layers, by the dtype of the embeddings that a scheme makes
complex_layers     dense layers, convolutions, recurrent cells and norms of complex numbers
recurrent          a Transformer with segment-level recurrence, as Transformer-XL
past               the segments that it remembers
recurrent_encoder  stacks of recurrent layers, in one direction or both
partitioned        content and position in separate halves of every layer (Kitaev and Klein 2018)
characters         the letters of each word as one vector
sentences          a batch of sentences, with what is known of their words
sides              the interface of models that translate
pooling            one vector for each row
orthogonal         one projection for queries and keys, with W_Q^T W_K = I
axes               names of the axes of parameters, for sharding
"""
