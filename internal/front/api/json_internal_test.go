package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// parts is a Text in parts.
type parts [][]byte

func (p parts) Each(f func([]byte) error) error {
	for _, part := range p {
		if err := f(part); err != nil {
			return err
		}
	}
	return nil
}

func TestWriteJSONTexts(t *testing.T) {
	t.Parallel()
	value := wire.RunResult{ID: `x"stdout":""`, ExitCode: 3}
	w := httptest.NewRecorder()
	err := WriteJSONTexts(w, http.StatusOK, value, map[string]Text{
		"stdout": parts{[]byte("gr\xc3"), []byte("\xbc\xc3\x9fe \"<a>\" \\"), {}, []byte("\xff\xfe"), []byte("\xff.\n")}, "stderr": parts{[]byte("\xe2\x80")},
	})
	want := value
	want.Stdout, want.Stderr = "grüße \"<a>\" \\\uFFFD.\n", "\uFFFD"
	want.StdoutBytes, want.StderrBytes = []byte("grüße \"<a>\" \\\xff\xfe\xff.\n"), []byte("\xe2\x80")
	var got wire.RunResult
	if err := errors.Join(err, json.Unmarshal(w.Body.Bytes(), &got)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %s\nwant %+v (%v)", w.Body, want, err)
	}
	w = httptest.NewRecorder()
	err = WriteJSONTexts(w, http.StatusOK, value, map[string]Text{"stdout": parts{[]byte("gr\xc3"), []byte("\xbc\xc3\x9fe")}, "stderr": parts{}})
	want = value
	want.Stdout = "grüße"
	if text, _ := json.Marshal(want); err != nil || w.Body.String() != string(text) { // a struct of texts and numbers
		t.Errorf("all UTF-8: got %s, want %s (%v)", w.Body, text, err)
	}
}

// FuzzJSONText cuts a text anywhere: the parts together are as encoding/json has it.
func FuzzJSONText(f *testing.F) {
	f.Add([]byte("a\xff\xfe\xc3\xbc\u2028\x00\x1f\x7f\"\\/<&>\xf0\x9f\x98"), uint64(1))
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		var b bytes.Buffer
		out := bufio.NewWriter(&b)
		w := jsonText{w: out}
		for rest := text; len(rest) > 0; {
			n := 1 + random.IntN(len(rest))
			if err := w.writePart(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		w.finish()
		_ = out.Flush() // a bytes.Buffer does not fail
		want, err := json.Marshal(strings.ToValidUTF8(string(text), "\uFFFD"))
		if err != nil || `"`+b.String()+`"` != string(want) {
			t.Errorf("%q: got %s, want %s", text, &b, want)
		}
	})
}

func TestEncodeJSONAsEncodingJSON(t *testing.T) {
	t.Parallel()
	type item struct {
		Name string `json:"name"`
	}
	for _, value := range []any{
		nil, 1, "a", []byte("abc"),
		[]string{},
		[]string(nil),
		[]item{{"a"}, {`"items":[]`}},
		map[string]int{"a": 1},
		wire.Page[item]{},
		wire.Page[item]{Items: []item{}},
		wire.Page[item]{Items: []item{{"<"}, {`"items":[]`}}, Next: `"items":[]`},
		&wire.Page[item]{Items: []item{{"a"}}, Next: "b"},
		struct{ Items []int }{[]int{1}},
		json.RawMessage(`{"a":1}`),
	} {
		var b bytes.Buffer
		want, err := json.Marshal(value)
		if plain := bytes.ReplaceAll(want, []byte(`\u003c`), []byte("<")); !bytes.Equal(plain, want) {
			want = plain
		}
		if encodeErr := EncodeJSON(&b, value); err != nil || encodeErr != nil || b.String() != string(want) {
			t.Errorf("%#v: got %s (%v), want %s (%v)", value, &b, encodeErr, want, err)
		}
	}
}

func TestWriteJSONWithoutMemory(t *testing.T) {
	t.Parallel()
	budget := memory.NewBudget(memory.Options{Total: 1 << 20})
	account := budget.OpenRequest("alice")
	r := httptest.NewRequestWithContext(memory.WithAccount(t.Context(), account), http.MethodGet, "/", nil)
	w := httptest.NewRecorder()
	if err := WriteJSON(w, r, http.StatusOK, strings.Repeat("x", 1<<20)); sandpit.CodeOf(err) != sandpit.Exhausted || w.Body.Len() > 0 {
		t.Errorf("got %v and %d bytes, want Exhausted", err, w.Body.Len())
	}
	if err := WriteJSON(w, r, http.StatusOK, strings.Repeat("x", 1000)); err != nil || w.Body.Len() != 1002 || account.Used() != 0 {
		t.Errorf("got %v and %d bytes, %d of memory", err, w.Body.Len(), account.Used())
	}
}

// TestWriteJSONBeforeDrain has a client that keeps its body open. Its response is complete before
// the rest of the body is read, and not only afterwards, when the time for writing is over.
func TestWriteJSONBeforeDrain(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := errors.Join(control.EnableFullDuplex(), control.SetWriteDeadline(time.Now().Add(restTimeout/2))); err != nil {
			t.Error(err)
		}
		w.Header().Set("Connection", "close")
		if err := WriteJSON(w, r, http.StatusGone, "text"); err != nil {
			t.Error(err)
		}
		DrainBody(w, r.Body)
	}))
	t.Cleanup(server.Close)
	body, pipe := io.Pipe()
	t.Cleanup(func() { _ = pipe.Close() })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != `"text"` {
		t.Errorf("got %q, %v", text, err)
	}
}
