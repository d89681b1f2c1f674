package toolbox

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// isSigned reports whether a request is for the content of a file, and its URL was signed.
func isSigned(r *http.Request) bool {
	_, call, _ := strings.Cut(r.Pattern, "{sandbox}")
	call = strings.TrimPrefix(call, "/toolbox")
	return (call == "/files/download" || call == "/files/upload-v2") && r.URL.Query().Get("signature") != ""
}

// admitSigned returns the context, with a principal, of a signed request. The caller calls release
// after the response.
//
// Unauthenticated: the signature is not valid, or has expired.
func (s *Server) admitSigned(r *http.Request, id sandpit.ID) (ctx context.Context, release func(), err error) {
	if s.o.AdmitSigned == nil {
		_, err := api.PrincipalOf(r.Context()) // the error says what to do
		return nil, nil, err
	}
	ctx, release, err = s.o.AdmitSigned(r, id, signedWith(r))
	if err != nil {
		return nil, nil, err
	}
	if err := checkExpiry(r.URL.Query().Get("expires"), time.Now()); err != nil {
		release()
		return nil, nil, err
	}
	return ctx, release, nil
}

// signedWith returns a function that reports whether a request was signed with a secret.
func signedWith(r *http.Request) func(secret string) bool {
	query := r.URL.Query()
	text := "v1:files:" + r.Method + ":" + query.Get("path") + ":" + query.Get("expires")
	given := []byte(query.Get("signature"))
	return func(secret string) bool {
		mac := hmac.New(sha256.New, []byte(secret))
		_, _ = mac.Write([]byte(text)) // never fails
		return hmac.Equal(given, []byte("v1_"+base64.RawURLEncoding.EncodeToString(mac.Sum(nil))))
	}
}

// checkExpiry refuses a time, in seconds since 1970, that has passed. 0 is never.
func checkExpiry(text string, now time.Time) error {
	expires, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || expires < 0:
		return sandpit.Errorf(sandpit.Unauthenticated, "expires %.20q: want seconds since 1970", text)
	case expires != 0 && now.Unix() > expires:
		return sandpit.Errorf(sandpit.Unauthenticated, "the signed URL has expired")
	}
	return nil
}
