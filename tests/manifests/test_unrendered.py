"""What envsubst or Helm should have replaced before a manifest is read is refused in a sentence."""

import pytest

from tests.harness.environment import Json, agent, manifest
from tests.harness.manifests import Writer, model


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (agent("${NAME}"), "m.yaml:4: Agent/default/${NAME}: metadata.name: '${NAME}'"),
        (
            model(baseUrl={"value": "${BASE_URL}/v1"}),
            "Model/default/m: spec.config.openai.baseUrl.value: '${BASE_URL}'",
        ),
        (
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": "${TOKEN}"}},
            "Secret/default/s: stringData.token: '${TOKEN}'",
        ),
    ],
    ids=["name", "address", "secret"],
)
def test_a_variable_that_was_not_replaced_is_refused_with_its_place(write: Writer, given: Json, place: str) -> None:
    [problem] = write.refusal(given)
    assert place in problem
    assert problem.endswith(
        "was not replaced: set the variable and run 'envsubst < FILE > RENDERED' first, or write the value"
    )


@pytest.mark.parametrize(
    "text",
    [
        "kind: Agent\nmetadata:\n  name: {{ .Release.Name }}-agent\n",
        "{{- if .Values.enabled }}\nkind: Agent\n{{- end }}\n",
        "apiVersion: ark.mckinsey.com/v1alpha1\nkind: Agent\nmetadata: {name: '{{ .name }}'}\nspec: {prompt: x}\n",
        "apiVersion: ark.mckinsey.com/v1alpha1\nkind: Agent\nmetadata: {name: a}\n"
        "spec: {prompt: x, modelRef: {name: '{{ .Values.m | default \"d\" }}'}}\n",
    ],
    ids=["unquoted", "block", "name", "field"],
)
def test_a_template_of_helm_is_recognized(write: Writer, text: str) -> None:
    [problem] = write.refusal(text=text)
    assert problem.endswith("looks like an unrendered Helm template: run 'helm template CHART > FILE' first")


def test_placeholders_of_a_manifests_own_templates_are_no_mistakes(write: Writer) -> None:
    http = {"url": "http://host/{{.city}}/{{end}}", "headers": [{"name": "x", "value": "{{ .default }}"}]}
    tool = manifest("Tool", "weather", {"type": "http", "http": http})
    about = agent("a", prompt="Explain ${HOME}, {{ .Values.x }} and {{- if }}.")
    loaded = write.load(tool, about)
    assert [str(each).partition(": ")[2] for each in loaded.notices()] == [
        "Agent/default/a: spec.prompt: '${HOME}' is read literally; if it is a variable, run 'envsubst' first"
    ]
