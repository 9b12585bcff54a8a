"""Other ways to compute `attend`: the same meaning, chosen by `implementation=`."""
