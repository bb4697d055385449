import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnqueueRequest(_message.Message):
    __slots__ = ("task", "args", "kwargs", "options", "request_id")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    task: str
    args: bytes
    kwargs: bytes
    options: bytes
    request_id: str
    def __init__(self, task: _Optional[str] = ..., args: _Optional[bytes] = ..., kwargs: _Optional[bytes] = ..., options: _Optional[bytes] = ..., request_id: _Optional[str] = ...) -> None: ...

class EnqueueReply(_message.Message):
    __slots__ = ("id", "deduplicated")
    ID_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    id: str
    deduplicated: bool
    def __init__(self, id: _Optional[str] = ..., deduplicated: _Optional[bool] = ...) -> None: ...

class EnqueueManyReply(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[EnqueueAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[EnqueueAnswer, _Mapping]]] = ...) -> None: ...

class EnqueueAnswer(_message.Message):
    __slots__ = ("id", "deduplicated", "code", "message")
    ID_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    deduplicated: bool
    code: int
    message: str
    def __init__(self, id: _Optional[str] = ..., deduplicated: _Optional[bool] = ..., code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class JobRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class WaitRequest(_message.Message):
    __slots__ = ("id", "seconds")
    ID_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    seconds: float
    def __init__(self, id: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("id", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    reason: str
    def __init__(self, id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("id", "done", "answer")
    ID_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    id: str
    done: bool
    answer: str
    def __init__(self, id: _Optional[str] = ..., done: _Optional[bool] = ..., answer: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "task", "queue", "status", "tries", "enqueued_at", "started_at", "ended_at", "json")
    ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    task: str
    queue: str
    status: str
    tries: int
    enqueued_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    json: bytes
    def __init__(self, id: _Optional[str] = ..., task: _Optional[str] = ..., queue: _Optional[str] = ..., status: _Optional[str] = ..., tries: _Optional[int] = ..., enqueued_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., json: _Optional[bytes] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("id", "status", "value", "error_type", "error_message")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: str
    value: bytes
    error_type: str
    error_message: str
    def __init__(self, id: _Optional[str] = ..., status: _Optional[str] = ..., value: _Optional[bytes] = ..., error_type: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("status", "progress", "result")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    status: str
    progress: Progress
    result: Result
    def __init__(self, status: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("done", "total", "note")
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    done: float
    total: float
    note: str
    def __init__(self, done: _Optional[float] = ..., total: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQueuesReply(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[Queue]
    def __init__(self, queues: _Optional[_Iterable[_Union[Queue, _Mapping]]] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("name", "waiting", "running", "scheduled", "retry", "dead", "paused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    waiting: int
    running: int
    scheduled: int
    retry: int
    dead: int
    paused: bool
    def __init__(self, name: _Optional[str] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., scheduled: _Optional[int] = ..., retry: _Optional[int] = ..., dead: _Optional[int] = ..., paused: _Optional[bool] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("name", "only", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    only: str
    why: str
    def __init__(self, name: _Optional[str] = ..., only: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...
