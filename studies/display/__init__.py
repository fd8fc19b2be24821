"""How results look: text and tables for a terminal, one trial's page, the report, Optuna's dashboard."""
