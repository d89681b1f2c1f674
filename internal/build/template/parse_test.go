package template_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/template"
)

const dockerfile = `# syntax=docker/dockerfile:1
ARG VERSION=3.12
FROM python:${VERSION}-slim AS base
ARG TOOL=make
ENV PATH=/opt/bin:$PATH \
    # a comment in between
    NAME="two words"
WORKDIR /app
RUN apt-get update && \
    apt-get install -y $TOOL
RUN ["echo", "$NAME"]
RUN --mount=type=secret,id=TOKEN,env=TOKEN pip install x
COPY --chown=1000:1001 --chmod=755 src/ "./with space/"
SHELL ["/bin/bash", "-c"]
USER $NAME
EXPOSE 8080 53/udp
LABEL a=b
ENTRYPOINT ["python3"]
CMD run me
`

func TestParseDockerfile(t *testing.T) {
	t.Parallel()
	got, err := template.ParseDockerfile([]byte(dockerfile), map[string]string{"TOOL": "gcc"})
	must(t, err)
	args := map[string]string{"TOOL": "gcc"}
	want := template.Template{
		From: "python:3.12-slim",
		Steps: []template.Step{
			{Env: map[string]string{"PATH": "/opt/bin:${PATH}", "NAME": "two words"}},
			{WorkDir: "/app"},
			{Run: []string{"/bin/sh", "-c", "apt-get update && apt-get install -y $TOOL"}, RunEnv: args},
			{Run: []string{"echo", "$NAME"}, RunEnv: args},
			{Run: []string{"/bin/sh", "-c", "pip install x"}, Secrets: []string{"TOKEN"}, RunEnv: args},
			{Copy: &template.Copy{From: []string{"src/"}, To: "./with space/", UID: 1000, GID: 1001, Mode: 0o755}},
			{User: "two words"},
		},
		Ports: []string{"8080", "53/udp"}, Labels: map[string]string{"a": "b"},
		Entrypoint: []string{"python3"}, Command: []string{"/bin/bash", "-c", "run me"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(template.Step{}, "Line")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"RUN x":                           "line 1: RUN: the first instruction must be FROM",
		"FROM a\nFROM b":                  "line 2: FROM: only one stage is supported",
		"FROM a\nVOLUME /x":               "line 2: VOLUME: unsupported instruction",
		"FROM a\nCOPY --from=b x y":       "line 2: COPY: --from: builds have one stage",
		"FROM a\nCOPY --chown=me x y":     "line 2: COPY: --chown=me: want numbers",
		"FROM a\nADD http://x/y /z":       "line 2: ADD: fetching and unpacking are not supported: http://x/y",
		"FROM a\nRUN <<EOF\nx\nEOF":       "line 2: RUN: here-documents (<<) are not supported",
		"FROM a\nENV A='x":                "line 2: ENV: unterminated quote",
		"FROM a\nEXPOSE 1-3":              `port "1-3": want a number, maybe with /tcp or /udp`,
		"FROM --platform=linux/arm64 a":   "line 1: FROM: want only the name of an image",
		"":                                "from is missing",
		"FROM a\nRUN --mount=type=bind x": "line 2: RUN: unsupported flag --mount=type=bind; only --mount=type=secret,env=NAME is supported",
		"FROM a\nWORKDIR ${A:?x}":         `line 2: WORKDIR: "${A:?x}": want ${NAME}, ${NAME:-word} or ${NAME:+word}`,
	} {
		if _, err := template.ParseDockerfile([]byte(text), nil); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"form = 'x'":                                    `unknown key "form"`,
		"from = 'x'\nports = [70000]":                   `port "70000": want a number, maybe with /tcp or /udp`,
		"from = 'x'\npackages = ['a b']":                `"a b" is not the name of a Debian package`,
		"from = 'x'\n[[step]]":                          "step 1: want one of run, copy, npm, env, workdir and user, got 0",
		"from = 'x'\n[[step]]\nrun='a'\nuser='b'":       "step 1: want one of run, copy, npm, env, workdir and user, got 2",
		"from = 'x'\n[[step]]\ncopy=['a']":              "step 1: copy: from or to is missing",
		"from = 'x'\n[[step]]\nnpm='a.json'\nto='/x'":   `step 1: no directory is given for the lock file "a.json"`,
		"from = 'x'\n[[step]]\nenv={'a b'='c'}":         `step 1: "a b" is not the name of an environment variable`,
		"from = 'x'\n[[step]]\nuser='a'\nsecrets=['B']": "step 1: only a step that runs a command can have secrets",
	} {
		_, err := template.Parse([]byte(text), nil)
		if sandpit.CodeOf(err) != sandpit.Invalid || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := template.Parse([]byte("from = "), nil); sandpit.CodeOf(err) != sandpit.Invalid || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a syntax error: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(dockerfile)
	f.Add(whole)
	f.Fuzz(func(t *testing.T, text string) {
		if tpl, err := template.ParseDockerfile([]byte(text), nil); err == nil && tpl.From == "" {
			t.Error("a template of nothing")
		}
		if tpl, err := template.Parse([]byte(text), nil); err == nil && tpl.From == "" {
			t.Error("a template of nothing")
		}
	})
}
