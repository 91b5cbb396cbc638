"""Office tasks of the public WorkBench benchmark (arXiv 2405.00823), judged by the tables that they leave behind."""
