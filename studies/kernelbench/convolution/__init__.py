"""Convolutions with operations of each element behind them."""
