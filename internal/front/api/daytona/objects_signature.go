package daytona

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// objectGrant is the right to use the object storage for a while.
type objectGrant struct {
	Owner string `json:"owner"`
	// Key is the ID of the API key that asked for the grant, which ends with it; "" for a client
	// without a key.
	Key string `json:"key,omitempty"`
	// Until is when the grant ends, in seconds since 1970.
	Until int64 `json:"until"`
}

// credentials are those of a grant. The token has the grant, and the other two follow from it.
type credentials struct{ access, secret, token string }

// objectGrants issues and checks credentials, which are valid until the server ends.
type objectGrants struct{ key []byte }

func newObjectGrants() *objectGrants {
	g := &objectGrants{make([]byte, 32)}
	_, _ = rand.Read(g.key) // never fails: crypto/rand ends the program instead
	return g
}

func hmacOf(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(text)) // never fails
	return mac.Sum(nil)
}

// newGrant returns the credentials of a grant.
func (g *objectGrants) newGrant(grant objectGrant) credentials {
	text, _ := json.Marshal(grant) // never fails: strings and a number
	return g.credentialsOf(base64.RawURLEncoding.EncodeToString(text))
}

// credentialsOf returns the credentials with a token.
func (g *objectGrants) credentialsOf(token string) credentials {
	return credentials{
		token: token, access: "SP" + strings.ToUpper(hex.EncodeToString(hmacOf(g.key, "access\n"+token)[:9])),
		secret: hex.EncodeToString(hmacOf(g.key, "secret\n"+token)),
	}
}

func asObjectError(err error) (*objectError, bool) { return errors.AsType[*objectError](err) }

// maxSkew is how far the clock of a client may differ.
const maxSkew = 15 * time.Minute

// The parts of signatures.
const (
	signatureScheme = "AWS4-HMAC-SHA256"
	signatureTime   = "20060102T150405Z"
	headerDigest    = "X-Amz-Content-Sha256"
)

// signature is the Authorization header of a request.
type signature struct {
	access, date, region string
	headers              []string // that are signed, in lower case
	value                string
}

// parseSignature reads the Authorization header.
func parseSignature(text string) (s signature, ok bool) {
	rest, ok := strings.CutPrefix(text, signatureScheme+" ")
	if !ok {
		return s, false
	}
	fields := map[string]string{}
	for field := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		fields[name] = value
	}
	scope := strings.Split(fields["Credential"], "/")
	if len(scope) != 5 || scope[3] != "s3" || scope[4] != "aws4_request" || fields["Signature"] == "" {
		return s, false
	}
	s = signature{access: scope[0], date: scope[1], region: scope[2], value: fields["Signature"], headers: strings.Split(fields["SignedHeaders"], ";")}
	return s, slices.Contains(s.headers, "host")
}

// checkRequest returns the grant of a request, whose signature must be right.
func (g *objectGrants) checkRequest(r *http.Request, now time.Time) (grant objectGrant, err error) {
	s, ok := parseSignature(r.Header.Get("Authorization"))
	if !ok {
		return grant, newObjectError(http.StatusForbidden, "AccessDenied", "want a request with the signature "+signatureScheme+" in the header Authorization")
	}
	known := g.credentialsOf(r.Header.Get("X-Amz-Security-Token"))
	text, err := base64.RawURLEncoding.DecodeString(known.token)
	if err != nil || !hmac.Equal([]byte(known.access), []byte(s.access)) || json.Unmarshal(text, &grant) != nil {
		return grant, newObjectError(http.StatusForbidden, "InvalidAccessKeyId", "unknown access key; get another one from /object-storage/push-access")
	}
	if !hmac.Equal([]byte(s.sign(r, known.secret)), []byte(s.value)) {
		return grant, newObjectError(http.StatusForbidden, "SignatureDoesNotMatch", "the signature does not match the request")
	}
	at, err := time.Parse(signatureTime, r.Header.Get("X-Amz-Date"))
	if err != nil || at.Format("20060102") != s.date || at.Sub(now).Abs() > maxSkew {
		return grant, newObjectError(http.StatusForbidden, "RequestTimeTooSkewed", "the time of the request differs from the server's")
	}
	if now.Unix() > grant.Until {
		return grant, newObjectError(http.StatusBadRequest, "ExpiredToken", "the credentials have expired")
	}
	return grant, nil
}

// sign returns the signature that a request must have.
func (s signature) sign(r *http.Request, secret string) string {
	scope := strings.Join([]string{s.date, s.region, "s3", "aws4_request"}, "/")
	sum := sha256.Sum256([]byte(s.canonicalRequest(r)))
	text := strings.Join([]string{signatureScheme, r.Header.Get("X-Amz-Date"), scope, hex.EncodeToString(sum[:])}, "\n")
	key := hmacOf([]byte("AWS4"+secret), s.date)
	for _, part := range []string{s.region, "s3", "aws4_request"} {
		key = hmacOf(key, part)
	}
	return hex.EncodeToString(hmacOf(key, text))
}

// canonicalRequest returns the text of a request that is signed.
func (s signature) canonicalRequest(r *http.Request) string {
	var b strings.Builder
	b.WriteString(r.Method + "\n" + cmp.Or(r.URL.EscapedPath(), "/") + "\n" + canonicalQuery(r.URL.RawQuery) + "\n")
	for _, name := range s.headers {
		b.WriteString(name + ":" + strings.Join(strings.Fields(signedHeader(r, name)), " ") + "\n")
	}
	b.WriteString("\n" + strings.Join(s.headers, ";") + "\n" + r.Header.Get(headerDigest))
	return b.String()
}

// signedHeader returns the value of a header, also of those that Go's server moves elsewhere.
func signedHeader(r *http.Request, name string) string {
	switch name {
	case "host":
		return r.Host
	case "content-length":
		return strconv.FormatInt(r.ContentLength, 10)
	case "transfer-encoding":
		return strings.Join(r.TransferEncoding, ",")
	default:
		return strings.Join(r.Header.Values(name), ",")
	}
}

// canonicalQuery returns a query with its parameters sorted.
func canonicalQuery(raw string) string {
	var all []string
	for pair := range strings.SplitSeq(raw, "&") {
		if pair != "" {
			name, value, _ := strings.Cut(pair, "=")
			all = append(all, escapeAgain(name)+"="+escapeAgain(value))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "&")
}

// escapeAgain returns a part of a query with the escapes that signatures have.
func escapeAgain(text string) string {
	plain, err := url.QueryUnescape(text)
	if err != nil {
		return text
	}
	return strings.ReplaceAll(url.QueryEscape(plain), "+", "%20")
}
