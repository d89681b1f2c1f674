package ownguest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/ownguest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// roundTrip is a transport made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

const key = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// answering is a guest that accepts a key.
func answering(accepted string) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		res := &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: r}
		if r.Header.Get("X-Access-Token") != accepted {
			res.StatusCode = http.StatusUnauthorized
		}
		return res, nil
	})
}

var errBroken = sandpit.Errorf(sandpit.Unavailable, "the connection broke")

// TestStart lets computers answer well, badly and with lies. The guest itself is tested in real sandboxes of providers.
func TestStart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		result ownguest.Result
		err    error
		http   http.RoundTripper
		code   sandpit.Code
		text   string
	}{
		"runs":         {result: ownguest.Result{Stdout: []byte("a banner\n{\"key\":\"" + key + "\",\"started\":true}\n")}, http: answering(key)},
		"no root":      {result: ownguest.Result{Stdout: []byte("no-root\n")}, code: sandpit.Unsupported, text: "has not the rights of root"},
		"architecture": {result: ownguest.Result{Stdout: []byte("missing riscv64\x1b[31m\n")}, code: sandpit.Unsupported, text: `architecture "riscv64`},
		"fails":        {result: ownguest.Result{Stderr: []byte("gzip: not found\x00"), Code: 127}, code: sandpit.Unsupported, text: "exit status 127: gzip: not found"},
		"nothing":      {code: sandpit.Unsupported, text: "unexpected answer of 0 bytes"},
		"nonsense":     {result: ownguest.Result{Stdout: []byte("hello")}, code: sandpit.Unsupported, text: "unexpected answer of 5 bytes"},
		"weak key":     {result: ownguest.Result{Stdout: []byte(`{"key":"a"}`)}, code: sandpit.Unsupported, text: "unexpected answer"},
		"header key":   {result: ownguest.Result{Stdout: []byte(`{"key":"` + key + `\r\nX: y"}`)}, code: sandpit.Unsupported, text: "unexpected answer"},
		"much":         {result: ownguest.Result{Stdout: []byte(strings.Repeat("x", 1<<20))}, code: sandpit.Unsupported, text: "unexpected answer of 65536 bytes"},
		"broken":       {err: errBroken, code: sandpit.Unavailable, text: "the connection broke"},
		"another program": {
			result: ownguest.Result{Stdout: []byte(`{"key":"` + key + `"}`)}, http: answering("another"),
			code: sandpit.Unavailable, text: "another program answers on its port",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, err := ownguest.Start(t.Context(), ownguest.Computer{
				WriteFile: func(context.Context, string, io.Reader, int64) error { return errors.New("not expected") },
				Run:       func(context.Context, string) (ownguest.Result, error) { return tc.result, tc.err },
				HTTP:      tc.http,
			}, ownguest.Settings{})
			if tc.code == "" {
				if err != nil || g.Key != key || !g.Started {
					t.Fatalf("%+v, %v", g, err)
				}
				return
			}
			if sandpit.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.text) || strings.Contains(err.Error(), key) || len(err.Error()) > 1000 {
				t.Errorf("%v (%s), want %q (%s)", err, sandpit.CodeOf(err), tc.text, tc.code)
			}
		})
	}
}
