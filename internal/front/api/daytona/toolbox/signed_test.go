package toolbox_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

// sign returns the query of a signed URL, as clients make it.
func sign(key, method, path string, expires int64) string {
	mac := hmac.New(sha256.New, []byte(key))
	fmt.Fprintf(mac, "v1:files:%s:%s:%d", method, path, expires)
	return "?" + url.Values{
		"path": {path}, "expires": {strconv.FormatInt(expires, 10)}, "signature": {"v1_" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))},
	}.Encode()
}

// TestSignedURL transfers files without a key, with URLs that were signed.
func TestSignedURL(t *testing.T) {
	t.Parallel()
	const key, path = "signing key", "/tmp/a b"
	var admitted atomic.Int32
	i := newInside(t, toolbox.Options{
		AdmitSigned: func(r *http.Request, _ sandpit.ID, matches func(string) bool) (context.Context, func(), error) {
			if !matches(key) {
				return nil, nil, sandpit.Errorf(sandpit.Unauthenticated, "invalid signature")
			}
			admitted.Add(1)
			return api.WithPrincipal(r.Context(), api.Principal{Owner: alice}), func() { admitted.Add(-1) }, nil
		},
	}, sandpit.Spec{})
	send := func(method, target, kind string, body io.Reader) answer {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, i.url+target, body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", kind)
		return i.do(r)
	}
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	part, err := w.CreateFormFile("file", "x")
	if err == nil {
		_, err = io.WriteString(part, "content")
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	later, earlier := time.Now().Add(time.Minute).Unix(), time.Now().Add(-time.Minute).Unix()
	const upload, download = "/files/upload-v2", "/files/download"
	send(http.MethodPost, upload+sign(key, http.MethodPost, path, later), w.FormDataContentType(), &form).want(http.StatusOK, nil)
	for _, expires := range []int64{0, later} {
		if got := send(http.MethodGet, download+sign(key, http.MethodGet, path, expires), "", http.NoBody).want(http.StatusOK, nil); got.body != "content" {
			t.Errorf("%q", got.body)
		}
	}
	good := sign(key, http.MethodGet, path, later)
	for what, target := range map[string]string{
		"expired": download + sign(key, http.MethodGet, path, earlier), "wrong key": download + sign("x", http.MethodGet, path, later),
		"wrong method": download + sign(key, http.MethodPost, path, later), "another path": download + good + "x", "another call": "/files" + good,
		"another call with such a name": "/proxy/80/files/download" + good, "unsigned": download + "?path=/tmp/a", "no time": download + "?path=/tmp/a&signature=v1_x",
	} {
		if got := send(http.MethodGet, target, "", http.NoBody); got.status != http.StatusUnauthorized {
			t.Errorf("%s: status %d: %s", what, got.status, got.body)
		}
	}
	if n := admitted.Load(); n != 0 {
		t.Errorf("%d requests were not released", n)
	}
}

// TestVariables sets and removes variables of programs that start later.
func TestVariables(t *testing.T) {
	t.Parallel()
	i := newInside(t, toolbox.Options{}, sandpit.Spec{Env: map[string]string{"OWN": "own"}})
	show := func() string {
		t.Helper()
		var done struct {
			ExitCode int
			Result   string
		}
		body := object{"command": `echo "$A-$B-$OWN-$C"`, "envs": object{"C": "c"}}
		i.call(http.MethodPost, "/process/execute", body).want(http.StatusOK, &done)
		return done.Result
	}
	for _, step := range []struct {
		body object
		want string
	}{
		{object{"set": object{"A": "1", "B": "token-2", "C": "x"}}, "1-token-2-own-c\n"},
		{object{"set": object{"OWN": "mine"}, "unset": []string{"A", "NEVER"}}, "-token-2-mine-c\n"},
		{object{"unsetValuePrefix": "token-"}, "--mine-c\n"},
	} {
		i.call(http.MethodPost, "/env", step.body).want(http.StatusOK, nil)
		if got := show(); got != step.want {
			t.Errorf("%v: %q, want %q", step.body, got, step.want)
		}
	}
	i.call(http.MethodPost, "/env", object{"unset": []string{"OWN"}}).wantCode(http.StatusNotImplemented, "NOT_IMPLEMENTED")
	i.call(http.MethodPost, "/env", object{"set": object{"A=B": "x"}}).wantCode(http.StatusBadRequest, "BAD_REQUEST")
	i.call(http.MethodPost, "/env", object{"set": object{"A": string(bytes.Repeat([]byte("x"), 65<<10))}}).wantCode(http.StatusTooManyRequests, "TOO_MANY_REQUESTS")
	if got := show(); got != "--mine-c\n" {
		t.Errorf("%q after refused changes", got)
	}
	i.call(http.MethodPost, "/process/session", object{"sessionId": "s"}).want(http.StatusCreated, nil)
	i.call(http.MethodPost, "/env", object{"set": object{"A": "later"}}).want(http.StatusOK, nil)
	if got := show(); got != "later--mine-c\n" {
		t.Errorf("%q", got)
	}
}
