package e2b_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestInterpreterCopies has kernels go on in copies of a sandbox: with their variables, the copy's environment, and random
// numbers that no other copy has.
func TestInterpreterCopies(t *testing.T) {
	t.Parallel()
	needKernels(t)
	s := newServer(t)
	client := s.With("SANDPIT_URL="+s.URL, "SANDPIT_API_KEY="+s.key)
	id := func(args ...string) string { return strings.TrimSpace(client.Output(t, args...)) }
	original := id("create", "-q", "host")
	client.Output(t, "exec", "-d", original, "/.sandpit/sandpit-guest", "interpreter", "-languages", "python")
	port := func(box string) address {
		return address{server: s.URL, host: strings.Trim(strings.TrimPrefix(id("url", "--public", box, "49999"), "http:"), "/")}
	}
	awaitHealth(t, port(original))
	execute(t, port(original), "import random\nrandom.seed(1)\nkept = 'kept'")
	snapshot := id("snapshot", "create", "-q", original)
	drawn := make(map[string]bool)
	for _, name := range []string{"one", "two"} {
		got := execute(t, port(id("create", "-q", "-e", "COPY="+name, "snapshot:"+snapshot)), "import os\nf'{kept} {os.environ[\"COPY\"]} {random.random()}'")
		before, number, _ := strings.Cut(got, " "+name+" ")
		if before != "kept" || number == "" || drawn[number] {
			t.Errorf("copy %s: %q; other copies have drawn %v", name, got, drawn)
		}
		drawn[number] = true
	}
	for box := range strings.FieldsSeq(id("ls", "-q")) {
		client.Output(t, "rm", box)
	}
}

// address is a port of a sandbox: names below localhost are not resolved here.
type address struct{ server, host string }

func (a address) send(t *testing.T, method, path string, body []byte) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, a.server+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Host, req.Close = a.host, true
	return http.DefaultClient.Do(req)
}

func awaitHealth(t *testing.T, a address) {
	t.Helper()
	for end := time.Now().Add(long); ; time.Sleep(100 * time.Millisecond) {
		res, err := a.send(t, http.MethodGet, "/health", nil)
		if err == nil {
			_ = res.Body.Close() // only the status is asked for
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no interpreter: %v, %+v", err, res)
		}
	}
}

// execute returns the text of what code results in.
func execute(t *testing.T, a address, code string) (text string) {
	t.Helper()
	body, err := json.Marshal(map[string]string{"code": code})
	if err != nil {
		t.Fatal(err)
	}
	res, err := a.send(t, http.MethodPost, "/execute", body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var last string
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		var e struct{ Type, Text, Name, Value string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		switch last = e.Type; e.Type {
		case "result":
			text = e.Text
		case "error":
			t.Errorf("%s: %s: %s", code, e.Name, e.Value)
		}
	}
	if last != "end_of_execution" {
		t.Errorf("%s: status %d, the last line is of type %q", code, res.StatusCode, last)
	}
	return text
}
