package daytona_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7/pkg/signer"

	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/uploads"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona"
)

// access are the credentials of a client.
type access struct {
	AccessKey, Secret, SessionToken, StorageURL, OrganizationID, Bucket string

	client *http.Client
}

// objectRig is a server with an object storage, and the access of ann's client.
func objectRig(t *testing.T) (*rig, access) {
	t.Helper()
	store := uploads.New(uploads.Options{Dir: t.TempDir()})
	r := newRigOf(t, manager.Options{}, func(o *daytona.Options) { o.Uploads = store }, func(o *api.EdgeOptions) { o.PublicBelow = []string{daytona.PathObjects} })
	a := access{client: r.Client}
	r.do(t, r.Ann, http.MethodGet, "/object-storage/push-access", "").Decode(t, &a)
	if a.OrganizationID != "ann" || !strings.HasPrefix(a.StorageURL, r.URL) {
		t.Fatalf("access %+v", a)
	}
	return r, a
}

// send sends a signed request, after change has changed it.
func (a access) send(t *testing.T, method, key, body string, change func(*http.Request)) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, a.StorageURL+"/"+a.Bucket+key, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(body))
	req.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
	req = signer.SignV4(*req, a.AccessKey, a.Secret, a.SessionToken, "eu-west-1")
	if change != nil {
		change(req)
	}
	res, err := a.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// TestObjects uploads, lists and refuses objects.
func TestObjects(t *testing.T) {
	t.Parallel()
	r, a := objectRig(t)
	hash := strings.Repeat("a", 32)
	key := "/ann/" + hash + "/context.tar"
	check := func(what string, status int, text string, wantStatus int, want string) {
		t.Helper()
		if status != wantStatus || !strings.Contains(text, want) {
			t.Errorf("%s: status %d: %s; want %d and %q", what, status, text, wantStatus, want)
		}
	}
	list := "/?list-type=2&max-keys=1&prefix=ann%2F" + hash + "%2F"
	status, text := a.send(t, http.MethodGet, list, "", nil)
	check("list nothing", status, text, http.StatusOK, "<KeyCount>0</KeyCount>")
	status, text = a.send(t, http.MethodPut, key, "text", func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("evil")) })
	check("other content than signed", status, text, http.StatusBadRequest, "BadDigest")
	status, text = a.send(t, http.MethodPut, key, "text", func(r *http.Request) { r.URL.Path = strings.ReplaceAll(r.URL.Path, hash, strings.Repeat("b", 32)) })
	check("another key than signed", status, text, http.StatusForbidden, "SignatureDoesNotMatch")
	status, text = a.send(t, http.MethodPut, key, "text", func(r *http.Request) { r.Header.Set("X-Amz-Security-Token", "e30") })
	check("another token", status, text, http.StatusForbidden, "InvalidAccessKeyId")
	status, text = a.send(t, http.MethodPut, key, "text", func(r *http.Request) { r.Header.Del("Authorization") })
	check("no signature", status, text, http.StatusForbidden, "AccessDenied")
	status, text = a.send(t, http.MethodPut, strings.Replace(key, "ann", "bob", 1), "text", nil)
	check("another owner's key", status, text, http.StatusForbidden, "AccessDenied")
	status, text = a.send(t, http.MethodGet, list, "", nil)
	check("list nothing still", status, text, http.StatusOK, "<KeyCount>0</KeyCount>")
	status, text = a.send(t, http.MethodPut, key, "text", nil)
	check("upload", status, text, http.StatusOK, "")
	status, text = a.send(t, http.MethodGet, list, "", nil)
	check("list", status, text, http.StatusOK, "<Key>ann/"+hash+"/context.tar</Key>")
	status, text = a.send(t, http.MethodGet, key, "", nil)
	check("download", status, text, http.StatusNotImplemented, "NotImplemented")
	bob := access{client: r.Client}
	r.do(t, r.Bob, http.MethodGet, "/object-storage/push-access", "").Decode(t, &bob)
	status, text = bob.send(t, http.MethodGet, list, "", nil)
	check("another owner's list", status, text, http.StatusOK, "<KeyCount>0</KeyCount>")
}

// TestObjectParts uploads an object in parts, also in chunks with a checksum after the content.
func TestObjectParts(t *testing.T) {
	t.Parallel()
	r, a := objectRig(t)
	key := "/ann/" + strings.Repeat("a", 32) + "/context.tar"
	_, text := a.send(t, http.MethodPost, key+"?uploads=", "", nil)
	_, rest, _ := strings.Cut(text, "<UploadId>")
	id, _, _ := strings.Cut(rest, "<")
	if id == "" {
		t.Fatal(text)
	}
	chunked := func(sum string) (int, string) {
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		body := "2\r\npa\r\n2\r\nrt\r\n0\r\nx-amz-checksum-crc32:" + sum + "\r\n\r\n"
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, a.StorageURL+"/"+a.Bucket+key+"?partNumber=2&uploadId="+id, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Amz-Content-Sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
		req.Header.Set("X-Amz-Decoded-Content-Length", "4")
		req.Header.Set("X-Amz-Trailer", "x-amz-checksum-crc32")
		res, err := r.Client.Do(signer.SignV4(*req, a.AccessKey, a.Secret, a.SessionToken, "us-east-1"))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		out, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(out) + res.Header.Get("ETag")
	}
	if status, text := chunked("AAAAAA=="); status != http.StatusBadRequest || !strings.Contains(text, "BadDigest") {
		t.Errorf("a wrong checksum: status %d: %s", status, text)
	}
	status, second := chunked("SQ9wxg==") // of "part"
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, second)
	}
	if status, text := a.send(t, http.MethodPut, key+"?partNumber=1&uploadId="+id, "first ", nil); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, text)
	}
	part := func(n, etag string) string {
		return "<Part><PartNumber>" + n + "</PartNumber><ETag>" + strings.ReplaceAll(etag, `"`, "&quot;") + "</ETag></Part>"
	}
	wrong := "<CompleteMultipartUpload>" + part("1", "x") + part("2", second) + "</CompleteMultipartUpload>"
	if status, text := a.send(t, http.MethodPost, key+"?uploadId="+id, wrong, nil); status != http.StatusBadRequest {
		t.Errorf("a wrong part: status %d: %s", status, text)
	}
	right := "<CompleteMultipartUpload>" + part("2", second) + "</CompleteMultipartUpload>"
	if status, text := a.send(t, http.MethodPost, key+"?uploadId="+id, right, nil); status != http.StatusOK {
		t.Errorf("complete: status %d: %s", status, text)
	}
	if status, text := a.send(t, http.MethodGet, "/?list-type=2", "", nil); status != http.StatusOK || !strings.Contains(text, "<Size>4</Size>") {
		t.Errorf("list: status %d: %s", status, text)
	}
	if status, text := a.send(t, http.MethodDelete, key+"?uploadId="+id, "", nil); status != http.StatusNotFound {
		t.Errorf("abort what is complete: status %d: %s", status, text)
	}
}

// TestKeys creates, lists and deletes API keys as an administrator.
func TestKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.do(t, r.Ann, http.MethodPost, "/api-keys", `{"name":"new"}`).want(t, http.StatusForbidden, "only administrators")
	made := r.do(t, r.Admin, http.MethodPost, "/api-keys", `{"name":"new","permissions":["write:sandboxes"],"expiresAt":null}`)
	made.want(t, http.StatusCreated, `"name":"new"`)
	var key struct{ Value string }
	if err := json.Unmarshal([]byte(made.Body), &key); err != nil {
		t.Fatal(err)
	}
	r.do(t, key.Value, http.MethodGet, "/api-keys/current", "").want(t, http.StatusOK, `"name":"new"`)
	r.do(t, key.Value, http.MethodGet, "/api-keys", "").want(t, http.StatusForbidden, "only administrators")
	r.do(t, r.Admin, http.MethodPost, "/api-keys", `{"name":"new"}`).want(t, http.StatusConflict, "already exists")
	r.do(t, r.Admin, http.MethodPost, "/api-keys", `{"name":"old","expiresAt":"2001-01-01T00:00:00Z"}`).want(t, http.StatusBadRequest, "expiresAt")
	r.do(t, r.Admin, http.MethodGet, "/api-keys", "").want(t, http.StatusOK, `"name":"new"`)
	r.do(t, r.Admin, http.MethodGet, "/api-keys/new", "").want(t, http.StatusOK, `"name":"new"`)
	r.do(t, r.Admin, http.MethodDelete, "/api-keys/new", "").want(t, http.StatusNoContent, "")
	r.do(t, r.Admin, http.MethodDelete, "/api-keys/new", "").want(t, http.StatusNotFound, "not found")
	r.do(t, key.Value, http.MethodGet, "/api-keys/current", "").want(t, http.StatusUnauthorized, "")
}
