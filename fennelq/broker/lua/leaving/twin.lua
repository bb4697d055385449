-- twin: removes the other copy of a job whose run took too long. Its executor is told to stop.
--@include twins
--@when ended, later, again: twin
twins().over(record, job, twin, how)
