"""Linear layers with a normalisation, a softmax or a reduction behind them."""
