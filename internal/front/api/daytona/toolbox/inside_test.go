package toolbox_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
	"github.com/sandpit-dev/sandpit/internal/testing/testgvisor"
)

// inside is a toolbox server with a real sandbox of alice.
type inside struct {
	*testing.T

	manager *manager.Manager
	id      sandpit.ID
	url     string // of the sandbox
	client  *http.Client
}

// newInside starts both until the test ends.
func newInside(t *testing.T, o toolbox.Options, spec sandpit.Spec) *inside {
	t.Helper()
	r := rigOn(t, o, map[string]sandpit.Provider{"gvisor": testgvisor.New(t)})
	if len(spec.Env) > 0 {
		about, err := r.manager.Create(t.Context(), manager.CreateRequest{Owner: alice, Spec: spec})
		if err != nil {
			t.Fatal(err)
		}
		r.id = about.ID
	}
	return &inside{T: t, manager: r.manager, id: r.id, url: r.url + toolbox.Path + string(r.id), client: r.client}
}

// answer is a response that was read.
type answer struct {
	t      testing.TB
	what   string
	status int
	header http.Header
	body   string
}

// send sends a request of the owner.
func (i *inside) send(method, path, contentType string, body io.Reader) answer {
	i.Helper()
	r, err := http.NewRequestWithContext(i.Context(), method, i.url+path, body)
	if err != nil {
		i.Fatal(err)
	}
	r.Header.Set(rigOwner, alice)
	r.Header.Set("Content-Type", contentType)
	return i.do(r)
}

func (i *inside) do(r *http.Request) answer {
	i.Helper()
	res, err := i.client.Do(r)
	if err != nil {
		i.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		i.Fatalf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	return answer{i.T, r.Method + " " + r.URL.Path, res.StatusCode, res.Header, string(text)}
}

// get sends a request without a body. The pairs are the query.
func (i *inside) get(path string, pairs ...string) answer {
	i.Helper()
	return i.call(http.MethodGet, path, nil, pairs...)
}

// call sends a request with a JSON body, unless that is nil.
func (i *inside) call(method, path string, body any, pairs ...string) answer {
	i.Helper()
	query := url.Values{}
	for n := 0; n+1 < len(pairs); n += 2 {
		query.Set(pairs[n], pairs[n+1])
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	if body == nil {
		return i.send(method, path, "", http.NoBody)
	}
	text, err := json.Marshal(body)
	if err != nil {
		i.Fatal(err)
	}
	return i.send(method, path, "application/json", bytes.NewReader(text))
}

// want checks the status of an answer, and decodes its body into value unless that is nil.
func (a answer) want(status int, value any) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, want %d: %.600s", a.what, a.status, status, a.body)
	}
	if value != nil {
		decoder := json.NewDecoder(strings.NewReader(a.body))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(value); err != nil {
			a.t.Fatalf("%s: %v: %.600s", a.what, err, a.body)
		}
	}
	return a
}

// wantCode checks that an answer is an error with a code.
func (a answer) wantCode(status int, code string) {
	a.t.Helper()
	var problem struct {
		StatusCode                                     int
		Message, Code, Timestamp, Path, Method, Source string
	}
	a.want(status, &problem)
	if problem.StatusCode != status || problem.Code != code || problem.Source != "DAYTONA_DAEMON" || problem.Message == "" {
		a.t.Errorf("%s: %s, want %d %s", a.what, a.body, status, code)
	}
}

// upload writes files with a form of pairs, as Daytona's clients do.
func (i *inside) upload(files ...[2]string) answer {
	i.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for n, f := range files {
		index := fmt.Sprintf("files[%d]", n)
		err := w.WriteField(index+".path", f[0])
		if err == nil {
			var part io.Writer
			if part, err = w.CreateFormFile(index+".file", f[0]); err == nil {
				_, err = io.WriteString(part, f[1])
			}
		}
		if err != nil {
			i.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		i.Fatal(err)
	}
	return i.send(http.MethodPost, "/files/bulk-upload", w.FormDataContentType(), &form)
}

// run runs a shell script in the sandbox and returns its output.
func (i *inside) run(script string) string {
	i.Helper()
	h, err := i.manager.Use(i.Context(), i.id)
	if err != nil {
		i.Fatal(err)
	}
	defer h.Release()
	var out bytes.Buffer
	p, err := h.Guest().Start(h.Context(), sandpit.Command{Args: []string{"/bin/sh", "-ec", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		i.Fatal(err)
	}
	if status, err := p.Wait(h.Context()); err != nil || status.Code != 0 {
		i.Fatalf("%s: %v, %v: %s", script, status, err, out.String())
	}
	return out.String()
}
