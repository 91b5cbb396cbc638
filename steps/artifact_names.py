"""Names of artifacts. Renaming one orphans the versions stored under it."""

from __future__ import annotations

MODEL_NAME = "email-search-agent"


MAIL_DATABASE = "mail_database"
MAIL_REPORT = "mail_report"
SCENARIOS = "scenarios"
QUESTIONS = "written_questions"
CHECKPOINT = "checkpoint"
WARM_START = "warm_start_checkpoint"
HISTORY = "training_history"
TRAINING_CURVE = "training_curve"
PREDICTIONS = "predictions"
PRODUCTION_PREDICTIONS = "production_predictions"
METRICS = "metrics"
REPORT = "evaluation_report"

KNOWLEDGE_GRAPH = "knowledge_graph"
PROSPECTS = "prospects"
ITERATIONS = "learn_loop_iterations"
NODE_SCORES = "node_scores"
EMAILS = "learn_loop_emails"
LEARN_LOOP_EVALUATION = "learn_loop_evaluation"
LEARN_LOOP_PAGE = "learn_loop_page"
