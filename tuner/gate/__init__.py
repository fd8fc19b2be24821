"""The correctness gate: a model under one configuration, or any module, against the reference in float64.

The quick battery (`quick.py`) is for every variant, at the tuned problem's own size. The full battery (`battery.py`)
is for those that may win, mostly at a reduced size. docs/gate.md lists what each stage refuses.
"""
