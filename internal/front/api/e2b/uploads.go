package e2b

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/uploads"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// PathUpload accepts the files of a build. Its query is signed, so it needs no key.
const PathUpload = "/templates/files"

// linkSigner signs links, which are valid until the server ends.
type linkSigner struct{ key []byte }

func newLinkSigner() *linkSigner {
	u := &linkSigner{make([]byte, 32)}
	_, _ = rand.Read(u.key) // never fails: crypto/rand ends the program instead
	return u
}

// uploadLink is the right to upload one archive without an API key.
type uploadLink struct {
	uploads.Name

	// key is the ID of the API key that asked for the link, which ends with it; "" for a
	// caller without a key.
	key string
	// until is when the link expires, in seconds since 1970.
	until string
}

// signLink returns the query of a signed link.
func (u *linkSigner) signLink(client api.Principal, hash string, until time.Time) string {
	l := uploadLink{uploads.Name{Owner: client.Owner, Hash: hash}, client.KeyID, strconv.FormatInt(until.Unix(), 10)}
	return "owner=" + base64.RawURLEncoding.EncodeToString([]byte(l.Owner)) + "&hash=" + l.Hash +
		"&key=" + base64.RawURLEncoding.EncodeToString([]byte(l.key)) + "&until=" + l.until + "&signature=" + u.linkSignature(l)
}

func (u *linkSigner) linkSignature(l uploadLink) string {
	mac := hmac.New(sha256.New, u.key)
	_, _ = mac.Write([]byte(l.Owner + "\n" + l.Hash + "\n" + l.key + "\n" + l.until)) // never fails
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// checkLink returns the link of a request. The caller must check whether its API key still
// exists. Unauthenticated.
func (u *linkSigner) checkLink(r *http.Request, now time.Time) (uploadLink, error) {
	query := r.URL.Query()
	owner, ownerErr := base64.RawURLEncoding.DecodeString(query.Get("owner"))
	key, keyErr := base64.RawURLEncoding.DecodeString(query.Get("key"))
	l := uploadLink{uploads.Name{Owner: string(owner), Hash: query.Get("hash")}, string(key), query.Get("until")}
	if ownerErr != nil || keyErr != nil || !hmac.Equal([]byte(query.Get("signature")), []byte(u.linkSignature(l))) {
		return uploadLink{}, sandpit.Errorf(sandpit.Unauthenticated, "invalid signature")
	}
	if seconds, err := strconv.ParseInt(l.until, 10, 64); err != nil || now.Unix() > seconds {
		return uploadLink{}, sandpit.Errorf(sandpit.Unauthenticated, "signature is already expired")
	}
	return l, nil
}

// uploadHandler receives the files of builds.
type uploadHandler struct {
	store *uploads.Store
	links *linkSigner
	keys  *api.Keys
}

// receiveUpload stores an archive, which must be complete and as long as announced. It counts
// as a request of the owner of the link.
func (h *uploadHandler) receiveUpload(w http.ResponseWriter, r *http.Request) error {
	l, err := h.links.checkLink(r, time.Now())
	if err != nil {
		return err
	}
	attached, release, err := h.keys.Attach(r.Context(), l.key)
	if err != nil {
		return err
	}
	defer release()
	leave, err := api.CountRequest(r, l.Owner)
	if err != nil {
		return err
	}
	defer leave()
	return h.store.Receive(attached, l.Name, uploads.Upload{
		Body: http.MaxBytesReader(w, r.Body, max(0, r.ContentLength)), Size: r.ContentLength, Connection: http.NewResponseController(w),
	})
}
