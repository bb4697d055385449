"""The text format of Prometheus."""

from __future__ import annotations

from fennelq.model import metrics
from fennelq.model.exposition import Page
from fennelq.model.metrics import Metric
from fennelq.model.times import BUCKETS

JOBS = Metric("jobs_total", "counter", "Jobs that\nhave \\ended.", ("queue", "outcome"), ("good", "bad"))
PLAIN = Metric("up", "gauge", "Up.")
TIMES = Metric("seconds", "histogram", "Times.", ("queue",))


def test_the_samples_of_a_metric_stand_together_after_its_help_and_its_type() -> None:
    page = Page()
    page.add(JOBS, 3, "mail", "good")
    page.add(PLAIN, 1)
    page.add(JOBS, 0.25, "mail", "bad")
    assert page.text() == (
        "# HELP jobs_total Jobs that\\nhave \\\\ended.\n"
        "# TYPE jobs_total counter\n"
        'jobs_total{queue="mail",outcome="good"} 3\n'
        'jobs_total{queue="mail",outcome="bad"} 0.25\n'
        "# HELP up Up.\n"
        "# TYPE up gauge\n"
        "up 1\n"
    )


def test_values_of_labels_are_escaped() -> None:
    page = Page()
    page.add(JOBS, 1, 'a"b\\c\nd{}é', "x")
    page.add(JOBS, 1, "\udc80", "x")
    lines = page.encoded().decode().splitlines()
    assert lines[2] == 'jobs_total{queue="a\\"b\\\\c\\nd{}é",outcome="x"} 1'
    assert lines[3] == 'jobs_total{queue="\\udc80",outcome="x"} 1'


def test_a_label_without_a_value_is_left_out() -> None:
    page = Page()
    page.add(JOBS, 1, None, "x")
    page.add_histogram(TIMES, [0] * BUCKETS, 0, None)
    assert 'jobs_total{outcome="x"} 1' in page.text()
    assert 'seconds_bucket{le="0.001"} 0' in page.text()
    assert "\nseconds_count 0\n" in page.text()


def test_each_fixed_value_of_the_last_label_has_a_sample() -> None:
    page = Page()
    page.add_each(JOBS, (3, 0), "mail")
    assert page.text().splitlines()[2:] == [
        'jobs_total{queue="mail",outcome="good"} 3',
        'jobs_total{queue="mail",outcome="bad"} 0',
    ]


def test_the_buckets_of_a_histogram_are_cumulative() -> None:
    page = Page()
    counts = [0] * BUCKETS
    counts[0], counts[3], counts[BUCKETS - 1] = 2, 1, 4
    page.add_histogram(TIMES, counts, 12.5, "mail")
    lines = page.text().splitlines()[2:]
    assert lines[:5] == [
        'seconds_bucket{queue="mail",le="0.001"} 2',
        'seconds_bucket{queue="mail",le="0.0025"} 2',
        'seconds_bucket{queue="mail",le="0.005"} 2',
        'seconds_bucket{queue="mail",le="0.01"} 3',
        'seconds_bucket{queue="mail",le="0.025"} 3',
    ]
    assert lines[-4:] == [
        'seconds_bucket{queue="mail",le="3600"} 3',
        'seconds_bucket{queue="mail",le="+Inf"} 7',
        'seconds_sum{queue="mail"} 12.5',
        'seconds_count{queue="mail"} 7',
    ]
    assert len(lines) == BUCKETS + 2


def test_the_names_and_the_order_of_labels_are_fixed() -> None:
    """Boards and alerts of users depend on them."""
    every = {metric.name: metric.labels for metric in (*metrics.OF_WORKERS, *metrics.OF_REDIS)}
    assert every == {
        "fennelq_runs_total": ("queue", "task", "outcome"),
        "fennelq_run_duration_seconds": ("queue", "task"),
        "fennelq_wait_duration_seconds": ("queue", "task"),
        "fennelq_sent_total": ("queue", "task", "outcome"),
        "fennelq_slots": (),
        "fennelq_slots_busy": (),
        "fennelq_unsettled": (),
        "fennelq_loop_lag_seconds": (),
        "fennelq_resident_memory_bytes": (),
        "fennelq_executors": ("state",),
        "fennelq_executor_ends_total": ("cause",),
        "fennelq_leases_lost_total": (),
        "fennelq_redis_errors_total": ("kind",),
        "fennelq_speculations_total": ("outcome",),
        "fennelq_build_info": ("version",),
        "fennelq_up": (),
        "fennelq_queue_jobs": ("queue", "state"),
        "fennelq_queue_waiting": ("queue", "priority"),
        "fennelq_queue_oldest_waiting_seconds": ("queue",),
        "fennelq_queue_overdue_seconds": ("queue",),
        "fennelq_queue_paused": ("queue",),
        "fennelq_queue_executors": ("queue",),
        "fennelq_queue_ended_total": ("queue", "outcome"),
        "fennelq_queue_events_total": ("queue", "event"),
        "fennelq_schedule_next_run_timestamp_seconds": ("schedule",),
        "fennelq_schedule_last_run_timestamp_seconds": ("schedule",),
        "fennelq_schedule_errors_total": ("schedule",),
        "fennelq_dead_groups": (),
        "fennelq_history_behind": (),
        "fennelq_survey_duration_seconds": (),
    }
