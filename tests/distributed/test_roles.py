"""What a process is to be, by its environment; DGL's ip_config files; graphlearn-torch's contexts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gnnkit.distributed import DistContext, DistRole
from gnnkit.distributed.graph_client import client_context, server_context
from gnnkit.distributed.life_cycle import Role, find_role
from gnnkit.distributed.process_group import DEFAULT_PORT, read_ip_config
from gnnkit.errors import PlanError
from tests.helpers.glt import needs_glt, of_glt

ONE = "10.0.0.1:7000"


def environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Sets ``GNNKIT_<name>`` for each; no other variable about roles or ranks is set."""
    for name in [name for name in os.environ if name.startswith("GNNKIT_") and name != "GNNKIT_HOME"] + ["RANK", "WORLD_SIZE"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name if name in ("RANK", "WORLD_SIZE") else f"GNNKIT_{name}", value)


def test_without_any_variable_a_process_samples_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch)
    assert find_role() == Role("standalone")
    environment(monkeypatch, PLAN="plan.json", NUM_SAMPLERS="3")
    assert find_role() == Role("standalone", num_samplers=3)


@pytest.mark.parametrize(
    ("name", "value"), [("DGL_ROLE", "server"), ("DGL_ROLE", "sampler"), ("DGL_NUM_CLIENT", "4"), ("DGL_DIST_MODE", "distributed")]
)
def test_variables_of_dgls_launcher_are_named_with_what_replaces_them(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch)
    monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match=rf"{name}={value} \(GNNKIT_\w+\)"):
        assert find_role().kind == "standalone"
    monkeypatch.setenv("GNNKIT_MODE", "standalone")
    assert find_role().kind == "standalone"


def test_standalone_mode_overrules_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, MODE="standalone", ROLE="client", ADDRESSES="nonsense")
    assert find_role(ONE).kind == "standalone"


def test_a_server_knows_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, ROLE="server", SERVER_ID="1", NUM_SERVERS="2", ADDRESSES=ONE, NUM_CLIENTS="4", NUM_SAMPLERS="2")
    assert find_role() == Role("server", 1, 2, 4, 2, ONE)


def test_a_client_takes_its_rank_from_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, ROLE="client", ADDRESSES=f"{ONE}, 10.0.0.2:7000", RANK="1", WORLD_SIZE="2")
    assert find_role() == Role("client", 1, 2, 2, None, f"{ONE},10.0.0.2:7000")


def test_a_client_may_know_nothing_but_the_meeting_point(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, ROLE="client", ADDRESSES=ONE)
    assert find_role() == Role("client", 0, None, 1, None, ONE)


def test_servers_of_this_host_are_named_by_their_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for text in (f"unix:{tmp_path}", str(tmp_path)):
        environment(monkeypatch, ROLE="client", ADDRESSES=text)
        assert find_role().address == f"unix:{tmp_path}"


def test_a_plan_that_names_servers_makes_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch)
    assert find_role(ONE) == Role("client", 0, None, 1, None, ONE)
    environment(monkeypatch, ROLE="client", ADDRESSES="10.0.0.9:1")
    assert find_role(ONE).address == "10.0.0.9:1", "the environment comes first"
    environment(monkeypatch, ROLE="server", SERVER_ID="0", NUM_SERVERS="1")
    assert find_role(ONE) == Role("server", 0, 1, None, None, ONE)


def test_dgls_file_counts_servers_by_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "ip_config.txt"
    file.write_text("10.0.0.1 7000\n10.0.0.2 7000\n")
    environment(monkeypatch, ROLE="server", SERVER_ID="3", NUM_SERVERS="2", ADDRESSES=str(file))
    expected = "10.0.0.1:7000,10.0.0.1:7001,10.0.0.2:7000,10.0.0.2:7001"
    assert find_role() == Role("server", 3, 4, None, None, expected)
    environment(monkeypatch, ROLE="client", ADDRESSES=str(file))
    assert find_role().address == "10.0.0.1:7000,10.0.0.2:7000"


def test_as_for_dgl_who_is_not_said_to_be_a_server_is_a_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "ip_config.txt"
    file.write_text("10.0.0.1 7000\n")
    client = Role("client", 0, 1, 1, None, "10.0.0.1:7000")
    environment(monkeypatch)
    assert find_role(None, str(file)) == Role(), "DGL_DIST_MODE is standalone unless it is set, and the file is not read"
    environment(monkeypatch, MODE="distributed")
    assert find_role(None, str(file)) == client
    environment(monkeypatch, ADDRESSES=str(file))
    assert find_role() == client
    environment(monkeypatch, MODE="distributed", ADDRESSES=ONE)
    assert find_role(None, str(file)).address == ONE, "the environment comes first"


SERVER = {"ROLE": "server", "SERVER_ID": "0", "NUM_SERVERS": "2", "ADDRESSES": ONE}


@pytest.mark.parametrize("missing", ["ROLE", "SERVER_ID", "NUM_SERVERS", "ADDRESSES"])
def test_what_is_missing_is_named_with_what_to_set(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    environment(monkeypatch, **{name: value for name, value in SERVER.items() if name != missing})
    with pytest.raises(PlanError, match=rf"^GNNKIT_{missing} is not set, .*\n  -> export GNNKIT_{missing}"):
        find_role()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ROLE": "serve"}, "GNNKIT_ROLE='serve' is no role.*'server'"),
        ({"MODE": "standalon"}, "GNNKIT_MODE='standalon' is no mode.*'standalone'"),
        ({"MODE": "distributed"}, "GNNKIT_ADDRESSES is not set"),
        ({"SERVER_ID": "0", "ADDRESSES": ONE}, "GNNKIT_ROLE is not set, but GNNKIT_SERVER_ID and GNNKIT_ADDRESSES are set"),
        ({"ROLE": "client"}, "GNNKIT_ADDRESSES is not set"),
        ({**SERVER, "SERVER_ID": "one"}, "GNNKIT_SERVER_ID='one' is no whole number"),
        ({**SERVER, "SERVER_ID": "2"}, "GNNKIT_SERVER_ID=2, but there are 2 servers"),
        ({**SERVER, "NUM_SERVERS": "0"}, "GNNKIT_NUM_SERVERS='0' is no whole number of at least 1"),
        ({**SERVER, "NUM_CLIENTS": "-1"}, "GNNKIT_NUM_CLIENTS='-1'"),
        ({**SERVER, "NUM_SAMPLERS": "2.5"}, "GNNKIT_NUM_SAMPLERS='2.5'"),
        ({**SERVER, "ADDRESSES": "10.0.0.1"}, "GNNKIT_ADDRESSES='10.0.0.1': .*no address of a host"),
        ({**SERVER, "ADDRESSES": f"{ONE},b:1,c:2"}, "GNNKIT_ADDRESSES has 3 addresses, but GNNKIT_NUM_SERVERS=2"),
        ({**SERVER, "ADDRESSES": "/nowhere/ip_config.txt"}, "cannot read the ip_config file '/nowhere/ip_config.txt'"),
        ({"ROLE": "client", "ADDRESSES": ONE, "NUM_CLIENTS": "1", "RANK": "0", "WORLD_SIZE": "2"}, "GNNKIT_NUM_CLIENTS=1, but .* 0 of 2"),
    ],
)
def test_what_is_malformed_is_named(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str) -> None:
    environment(monkeypatch, **variables)
    with pytest.raises(PlanError, match=message):
        find_role()


def test_an_ip_config_file_is_read_as_dgl_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "ip_config.txt"
    file.write_text("172.31.0.4\n\n172.31.0.5 30060  # the big one\nfd00::1 40000\n")
    assert read_ip_config(file) == (f"172.31.0.4:{DEFAULT_PORT}", "172.31.0.5:30060", "[fd00::1]:40000")
    assert read_ip_config(file, 2)[:2] == (f"172.31.0.4:{DEFAULT_PORT}", f"172.31.0.4:{DEFAULT_PORT + 1}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no machine"),
        ("10.0.0.1 7000 2", "line 1 of .* has 3 words"),
        ("10.0.0.1 7000\n10.0.0.2 http", "line 2 of .* is '10.0.0.2 http'"),
        ("10.0.0.1 65535", "line 1 of .*: 2 servers from port 65535"),
        ("10.0.0.1 7000\n10.0.0.1 7001", "lines 1 and 2 of .* both have a server at 10.0.0.1:7001"),
    ],
)
def test_a_damaged_ip_config_file_is_an_error_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "ip_config.txt"
    file.write_text(text)
    with pytest.raises(PlanError, match=message):
        read_ip_config(file, 2)


def test_contexts_count_as_graphlearn_torchs_do() -> None:
    server = server_context(2, 1, 3, None)
    assert (server.world_size, server.rank, server.global_world_size, server.global_rank) == (2, 1, 5, 1)
    assert server.is_server() and not server.is_client() and (server.num_servers(), server.num_clients()) == (2, 3)
    assert server.worker_name == "_default_server_1"
    client = client_context(2, 3, 1, "trainers")
    assert (client.world_size, client.rank, client.global_world_size, client.global_rank) == (3, 1, 5, 3)
    assert client.is_client() and (client.num_servers(), client.num_clients()) == (2, 3) and client.worker_name == "trainers_1"
    with pytest.raises(PlanError, match="rank must be between 0 and 2, got 3"):
        client_context(2, 3, 3, None)


@needs_glt
def test_roles_have_graphlearn_torchs_numbers() -> None:
    their_role = of_glt("distributed.DistRole")
    assert {role.name: role.value for role in DistRole} == {role.name: role.value for role in their_role}
    theirs_context = of_glt("distributed.DistContext")(their_role.CLIENT, "c", 2, 1, 5, 4)
    ours = DistContext(DistRole.CLIENT, "c", 2, 1, 5, 4)
    assert vars(theirs_context) | {"role": None} == vars(ours) | {"role": None}
    assert theirs_context.num_servers() == ours.num_servers() and theirs_context.worker_name == ours.worker_name
