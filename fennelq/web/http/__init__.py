"""The HTTP API: every program can send, follow and cancel jobs. It needs `pip install 'fennelq[web]'`.

application  `api(app, auth=…)`: the API as an ASGI application, to be mounted in another one
routes       the table: method, path, right, handler, models; table: a row of it; paths: which row a request is for
answering    what every request passes, and how a response is made; call: what a handler gets
problems     errors as `application/problem+json`
bodies       reads bodies within limits; forms: what they must have
sending, bulk, results, events, jobs, search, dead, operations, queues, schedules, looking, metrics: the handlers
openapi      the OpenAPI document of the table; reference: the page that is made of it
"""
