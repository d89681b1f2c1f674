package guest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Operations that a signature can allow.
const (
	signedRead  = "read"
	signedWrite = "write"
)

// checkSignature reports whether the query of a file call is signed with token:
// a signature allows one operation on one path as one user, for some time. The
// form is E2B's.
func checkSignature(r *http.Request, token string, now time.Time) error {
	query := r.URL.Query()
	given := query.Get("signature")
	if given == "" {
		return httpErrorf(http.StatusUnauthorized, unauthorized)
	}
	operation := signedRead
	if r.Method == http.MethodPost {
		operation = signedWrite
	}
	signed := []string{query.Get("path"), operation, query.Get("username"), token}
	expiration := query.Get("signature_expiration")
	if expiration != "" {
		signed = append(signed, expiration)
	}
	sum := sha256.Sum256([]byte(strings.Join(signed, ":")))
	want := "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
	if subtle.ConstantTimeCompare([]byte(given), []byte(want)) != 1 {
		return httpErrorf(http.StatusUnauthorized, "invalid signature")
	}
	if expiration == "" {
		return nil
	}
	seconds, err := strconv.ParseInt(expiration, 10, 64)
	if err != nil {
		return httpErrorf(http.StatusUnauthorized, "invalid signature expiration")
	}
	if now.Unix() > seconds {
		return httpErrorf(http.StatusUnauthorized, "signature is already expired")
	}
	return nil
}
