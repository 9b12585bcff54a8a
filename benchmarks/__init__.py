"""Time and memory of attention and of training steps, ours and others', measured side by side.

`attention.py`, `train_step.py`, `sentence_pairs.py` and `parsing.py` are the commands;
`interleave.py` runs the processes, `worker.py` is what each of them runs, and `peers` holds one
file for each library. `gpu_sweep.py`, with `gpu_measure.py` and `gpu_kernels.py`, measures in one
process what is to be known of a GPU first. `decode.py` and `crf.py` hold two ways of our own side
by side in one process. Others' libraries are optional: torch's CPU build by
`pip install torch==2.13.0`, then `pip install -e '.[train,peers]'`.
"""
