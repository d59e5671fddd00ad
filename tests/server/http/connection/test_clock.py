"""Time passes for connections only while the server can read what they send."""

from server.http.connection.send_buffer import TICK_SECONDS, Clock


def test_it_stands_still_while_the_server_does() -> None:
    machine = 100.0
    clock = Clock(lambda: machine)
    for _ in range(4):
        machine += TICK_SECONDS
        clock.tick()
    assert clock.now == 4 * TICK_SECONDS
    machine += 3600
    clock.tick()
    assert clock.now == 6 * TICK_SECONDS
