"""The ground the tests stand on: real servers, broken networks, processes to kill, and a record of what ran.

    server    a Valkey or Redis of the tests' own
    proxy     the network between a client and a server, to be broken at will
    spawn     child processes: start, wait for a line, signal, end
    clock     the server's clock, to be moved
    ageing    time that passes for TTLs
    ledger    which runs of which job started and ended, written by the jobs themselves
    waiting   `eventually`, instead of sleeping

Below them: `guardian` (nothing outlives the tests), `ports` (a port stays ours), `network` (the inside of a
proxy) and `resp` (where replies end).
"""
