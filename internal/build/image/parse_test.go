package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// memoryFiles are files in memory.
type memoryFiles map[string][]byte

func (m memoryFiles) open(path string) (io.ReadCloser, error) {
	data, ok := m[path]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func TestParseReference(t *testing.T) {
	t.Parallel()
	digest := sha256Of(nil)
	for text, want := range map[string][2]string{ // complete, short
		"python":                         {"docker.io/library/python:latest", "python:latest"},
		"python:3.12-slim":               {"docker.io/library/python:3.12-slim", "python:3.12-slim"},
		"docker.io/python":               {"docker.io/library/python:latest", "python:latest"},
		"index.docker.io/library/python": {"docker.io/library/python:latest", "python:latest"},
		"owner/name":                     {"docker.io/owner/name:latest", "owner/name:latest"},
		"ghcr.io/owner/name:v1.2_x":      {"ghcr.io/owner/name:v1.2_x", "ghcr.io/owner/name:v1.2_x"},
		"GHCR.io/a/b":                    {"ghcr.io/a/b:latest", "ghcr.io/a/b:latest"},
		"localhost/x":                    {"localhost/x:latest", "localhost/x:latest"},
		"localhost:5000/x":               {"localhost:5000/x:latest", "localhost:5000/x:latest"},
		"localhost:5000/x@" + digest:     {"localhost:5000/x@" + digest, "localhost:5000/x@" + digest},
		"python:3@" + digest:             {"docker.io/library/python@" + digest, "python@" + digest},
		"[::1]:5000/x/y/z:t":             {"[::1]:5000/x/y/z:t", "[::1]:5000/x/y/z:t"},
		"registry.test/a__b/c-d/e.f":     {"registry.test/a__b/c-d/e.f:latest", "registry.test/a__b/c-d/e.f:latest"},
		"docker.io/localhost/x":          {"docker.io/localhost/x:latest", "docker.io/localhost/x:latest"},
		"":                               {}, ":": {}, "a:": {}, "a:b:c": {}, "A": {}, "a/B": {}, "a//b": {}, "/a": {}, "a/": {}, "-a": {}, "a b": {}, "a\x00": {},
		"a@sha256:1": {}, "a@" + digest + "0": {}, "a@md5:" + digest: {}, "a@" + strings.ToUpper(digest): {}, "a:" + strings.Repeat("t", 129): {},
		strings.Repeat("a", 256): {}, "ex ample.com/x": {}, "a.b:port/x": {}, "user@host/x": {}, "http://x/y": {}, "../x": {}, "a/../b": {}, "a:../x": {},
		"..:80/x": {}, "registry.test:99999999/x": {},
	} {
		r, err := parseReference(text)
		if want == ([2]string{}) {
			if code := sandpit.CodeOf(err); code != sandpit.Invalid {
				t.Errorf("%q: %v, %v", text, r, err)
			}
			continue
		}
		if err != nil || r.String() != want[0] || r.shortName() != want[1] {
			t.Errorf("%q: %s and %s, %v, want %s and %s", text, r, r.shortName(), err, want[0], want[1])
		}
	}
}

func FuzzReference(f *testing.F) {
	for _, text := range []string{"python:3.12-slim", "localhost:5000/x@" + sha256Of(nil), "docker.io/localhost/x", "docker.io/a.b/c", "[::1]:5000/x/y:t", "a/../b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseReference(text)
		if err != nil {
			if code := sandpit.CodeOf(err); code != sandpit.Invalid && code != sandpit.Unsupported {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		for _, name := range []string{r.String(), r.shortName()} {
			if again, err := parseReference(name); err != nil || again != r {
				t.Errorf("%q becomes %q, which means %v, %v", text, name, again, err)
			}
		}
		if strings.Contains(r.String(), "..") || strings.ContainsAny(r.String(), " \x00\n?#%") {
			t.Errorf("%q is %q", text, r)
		}
	})
}

func TestParseConfig(t *testing.T) {
	t.Parallel()
	many := `["` + strings.Repeat(`a","`, maxConfigItems) + `"]`
	for text, want := range map[string]any{
		`{}`: Config{},
		`{"config":{"Env":["A=1","A=2","B=","C"],"WorkingDir":"rel/../x","User":"app:staff"}}`:                                         Config{Env: map[string]string{"A": "2", "B": ""}, WorkDir: "/x", User: "app:staff"},
		`{"config":null,"created":"not a time","architecture":7}`:                                                                      sandpit.Invalid,
		`{"created":"nonsense","config":{"ExposedPorts":{"80":{},"80/tcp":{},"53/udp":{},"0/tcp":{},"1-2/tcp":{},"x":{},"99999":{}}}}`: Config{ExposedPorts: []string{"53/udp", "80/tcp"}},
		`[]`:                                   sandpit.Invalid,
		`{`:                                    sandpit.Invalid,
		`{"config":{"Env":["=x"]}}`:            sandpit.Invalid,
		`{"config":{"Env":["A=\u0000"]}}`:      sandpit.Invalid,
		`{"config":{"Env":"A=1"}}`:             sandpit.Invalid,
		`{"config":{"User":"a b"}}`:            sandpit.Invalid,
		`{"config":{"User":"a\u001b"}}`:        sandpit.Invalid,
		`{"config":{"WorkingDir":"/a\u0000"}}`: sandpit.Invalid,
		`{"config":{"WorkingDir":"/` + strings.Repeat("a", 256) + `"}}`:             sandpit.Invalid,
		`{"config":{"WorkingDir":"/` + strings.Repeat("a/", 2100) + `"}}`:           sandpit.Invalid,
		`{"config":{"Cmd":` + many + `}}`:                                           sandpit.Exhausted,
		`{"config":{"Env":["A=` + strings.Repeat("x", maxConfigBytes) + `"]}}`:      sandpit.Exhausted,
		`{"config":{"Labels":{"a":"` + strings.Repeat("x", maxConfigBytes) + `"}}}`: sandpit.Exhausted,
	} {
		_, got, err := parseConfig([]byte(text))
		if code, ok := want.(sandpit.Code); ok {
			if !errors.Is(err, code) {
				t.Errorf("%.80s: %v, want %q", text, err, code)
			}
			continue
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%.80s: %v\n%s", text, err, diff)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"config":{"Env":["A=1"],"WorkingDir":"/x","User":"u","ExposedPorts":{"1/tcp":{}},"Labels":{"a":"b"}},"created":"2024-01-02T03:04:05.6Z"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		raw, c, err := parseConfig(data)
		if err != nil {
			if sandpit.CodeOf(err) == sandpit.Internal {
				t.Errorf("no code: %v", err)
			}
			return
		}
		if c.WorkDir != "" && !strings.HasPrefix(c.WorkDir, "/") || strings.ContainsRune(c.WorkDir+c.User, 0) {
			t.Errorf("%+v", c)
		}
		for name := range c.Env {
			if name == "" || strings.ContainsAny(name, "=\x00") {
				t.Errorf("variable %q", name)
			}
		}
		_ = fmt.Sprint(raw.createdAt(), raw.toPlatform())
	})
}

func TestParseChallenge(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		`Bearer realm="https://a/t",service="s p",scope="repository:x:pull,push"`: "bearer https://a/t|s p",
		`bearer service=s , realm=https://a/t`:                                    "bearer https://a/t|s",
		`Bearer realm="a\"b"`:                                                     `bearer a"b|`,
		`Bearer realm="a`:                                                         `bearer a|`,
		`Basic realm="x"`:                                                         "basic |",
		`Bearer`:                                                                  " |",
		`Negotiate`:                                                               " |",
		``:                                                                        " |",
	} {
		scheme, params := pickChallenge([]string{header})
		if got := scheme + " " + params["realm"] + "|" + params["service"]; got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
}

func FuzzChallenge(f *testing.F) {
	f.Add(`Bearer realm="https://a/t",service=s`)
	f.Fuzz(func(_ *testing.T, header string) { pickChallenge([]string{header}) })
}
