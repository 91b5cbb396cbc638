"""Prometheus metrics of one service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)


class Metrics:
    """Counters and histograms under the prefix `email_agent_`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"email_agent_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"email_agent_{name}", text, registry=self.registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"email_agent_{name}", text, labels, registry=self.registry, buckets=_SECONDS)

        self.requests = counter("requests_total", "HTTP requests", "route", "method", "status")
        self.request_seconds = histogram("request_seconds", "time from a request to the end of its response", "route")
        self.outcomes = counter("answers_total", "finished questions by outcome", "outcome")
        self.episode_seconds = histogram("episode_seconds", "time that the agent took for a question")
        self.queue_seconds = histogram("queue_seconds", "time that a question waited for a place")
        self.tokens = counter("sampled_tokens_total", "tokens that the policy sampled for finished questions")
        self.turned_away = counter("turned_away_total", "questions without a place in the queue", "reason")
        self.unrecorded = counter(
            "unrecorded_total", "answers without a pipeline run: too many were waiting for one, or it failed"
        )
        self.feedback = counter("feedback_total", "ratings", "verdict")
        self.running = gauge("questions_running", "questions that are being answered")
        self.waiting = gauge("questions_waiting", "questions that wait for a place")
        self.capacity = gauge("questions_capacity", "questions that can be answered at the same time")
        self.policy_up = gauge("policy_up", "whether the model's server answers")
        self.policy_restarts = gauge("policy_restarts", "how often the model's server was started again")

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
