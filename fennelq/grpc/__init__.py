"""The gRPC server: jobs for programs in every language. It needs `pip install 'fennelq[grpc]'`.

fennelq.proto      the services and messages; `make proto` generates fennelq_pb2 and fennelq_pb2_grpc from it
server             `serving(app, …)`: the server; health and reflection
calls              what every call passes: its token, the right; errors become codes
codes              which error has which code
jobs, queues       the services
"""
