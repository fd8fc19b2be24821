"""Linear layers with operations of each element behind them."""
