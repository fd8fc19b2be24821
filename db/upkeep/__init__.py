"""Looking after a database: checking it, removing from it, and its copy for Optuna's own tools."""
