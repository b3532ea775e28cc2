"""Contract 5 as a table: which cluster is chosen, and what is an error rather than a fallback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from allranks.cluster import ClusterError
from allranks.cluster.choose import Choice, Kind, choose


def kubeconfig(path: Path, current: str | None = "prod", contexts: tuple[str, ...] = ("prod", "dev")) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"contexts": [{"name": name, "context": {"cluster": name}} for name in contexts]}
    path.write_text(yaml.safe_dump(data | ({"current-context": current} if current else {})))
    return path


def decide(tmp_path: Path, cluster: str = "auto", given: Path | None = None, **env: str) -> Choice:
    return choose(cluster, given, env=env, home=tmp_path / "home", service_account=tmp_path / "sa")


def test_nothing_configured_is_the_standin(tmp_path: Path) -> None:
    assert decide(tmp_path) == Choice(Kind.STANDIN)


@pytest.mark.parametrize("variable", ["CI", "BUILD_NUMBER"])
def test_ci_without_kubeconfig_is_an_error_never_the_standin(tmp_path: Path, variable: str) -> None:
    with pytest.raises(ClusterError, match=rf"no cluster: KUBECONFIG is not set .* {variable} is set"):
        decide(tmp_path, **{variable: "true"})


def test_ci_that_asks_for_the_standin_gets_it(tmp_path: Path) -> None:
    assert decide(tmp_path, "standin", CI="true").kind is Kind.STANDIN


def test_standin_with_kubeconfig_given(tmp_path: Path) -> None:
    assert decide(tmp_path, "standin", tmp_path / "k") == Choice(Kind.STANDIN, (tmp_path / "k",))


def test_current_context_of_home(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "home" / ".kube" / "config")
    assert decide(tmp_path, CI="true") == Choice(Kind.CONTEXT, (path,), "prod")


def test_kubeconfig_variable_comes_before_home(tmp_path: Path) -> None:
    kubeconfig(tmp_path / "home" / ".kube" / "config")
    named = kubeconfig(tmp_path / "named", "dev")
    assert decide(tmp_path, KUBECONFIG=str(named)) == Choice(Kind.CONTEXT, (named,), "dev")


@pytest.mark.parametrize("value", ["", os.pathsep])
def test_variable_that_names_nothing_is_a_lost_secret_not_the_standin(tmp_path: Path, value: str) -> None:
    with pytest.raises(ClusterError, match="KUBECONFIG is set but names no file"):
        decide(tmp_path, KUBECONFIG=value)
    path = kubeconfig(tmp_path / "home" / ".kube" / "config")  # which kubectl uses then
    assert decide(tmp_path, KUBECONFIG=value) == Choice(Kind.CONTEXT, (path,), "prod")


def test_several_files_give_the_first_current_context_and_all_contexts(tmp_path: Path) -> None:
    files = (kubeconfig(tmp_path / "a", None, ("x",)), kubeconfig(tmp_path / "b", "y", ("y",)))
    joined = os.pathsep.join(map(str, files))
    assert decide(tmp_path, KUBECONFIG=joined) == Choice(Kind.CONTEXT, files, "y")
    assert decide(tmp_path, "x", KUBECONFIG=joined) == Choice(Kind.CONTEXT, files, "x")


def test_context_by_name(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", None)
    assert decide(tmp_path, "dev", path) == Choice(Kind.CONTEXT, (path,), "dev")


def test_unknown_context_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no context 'prd'; it has: dev, prod"):
        decide(tmp_path, "prd", kubeconfig(tmp_path / "k"))


def test_context_without_any_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="there is no kubeconfig"):
        decide(tmp_path, "prod")


def test_named_but_missing_is_an_error_even_beside_a_home_config(tmp_path: Path) -> None:
    kubeconfig(tmp_path / "home" / ".kube" / "config")
    with pytest.raises(ClusterError, match=r"gone \(named by KUBECONFIG\) does not exist"):
        decide(tmp_path, KUBECONFIG=str(tmp_path / "gone"))


def test_one_missing_file_of_several_is_an_error(tmp_path: Path) -> None:
    present = kubeconfig(tmp_path / "k")
    with pytest.raises(ClusterError, match="gone"):
        decide(tmp_path, KUBECONFIG=os.pathsep.join([str(tmp_path / "gone"), str(present)]))


def test_dangling_home_config_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "home" / ".kube").mkdir(parents=True)
    (tmp_path / "home" / ".kube" / "config").symlink_to(tmp_path / "secret")
    with pytest.raises(ClusterError, match="does not exist"):
        decide(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "contexts: []"])
def test_kubeconfig_without_current_context(tmp_path: Path, content: str) -> None:
    (tmp_path / "k").write_text(content)
    with pytest.raises(ClusterError, match="no current context"):
        decide(tmp_path, KUBECONFIG=str(tmp_path / "k"))


def test_current_context_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="'gone' is not among its contexts"):
        decide(tmp_path, given=kubeconfig(tmp_path / "k", "gone"))


def test_unreadable_kubeconfig_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()  # readable to nobody as a file, root included
    with pytest.raises(ClusterError, match="cannot be read"):
        decide(tmp_path, KUBECONFIG=str(tmp_path / "k"))


def test_broken_kubeconfig_does_not_show_its_content(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("token: [SECRET\n")
    with pytest.raises(ClusterError, match="not valid YAML") as caught:
        decide(tmp_path, KUBECONFIG=str(tmp_path / "k"))
    assert "SECRET" not in str(caught.value)


def test_in_a_pod(tmp_path: Path) -> None:
    (tmp_path / "sa").mkdir()
    (tmp_path / "sa" / "token").write_text("t")
    assert decide(tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1", CI="1") == Choice(Kind.IN_CLUSTER)


def test_in_a_pod_without_token_is_an_error_not_the_standin(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="without a service account token"):
        decide(tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1")


def test_kubeconfig_comes_before_the_pods_own_account(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k")
    assert decide(tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1", KUBECONFIG=str(path)).kind is Kind.CONTEXT
