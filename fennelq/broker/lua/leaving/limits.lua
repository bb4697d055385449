-- limits: gives back the slots of a job, and lets the next ones into their lanes. A job that starts again (a release, a
-- recovery) keeps its slots.
--@include lines
--@when ended, later: gates, place, lane
lines().leave(job, gates, home_of(place, lane))
