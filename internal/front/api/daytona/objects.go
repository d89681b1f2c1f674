package daytona

import (
	"encoding/xml"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/uploads"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// PathObjects is the address of the object storage, which has the part of Amazon's S3 API with which
// Daytona's clients upload the files of images. Requests have signatures, so they need no key.
const PathObjects = Prefix + "/object-storage/s3/"

const (
	// bucket is the only bucket.
	bucket = "builds"
	// objectName ends the key of each object: OWNER/HASH/context.tar.
	objectName = "context.tar"
	// objectRegion is the region that clients get. They may sign for another one.
	objectRegion = "us-east-1"
)

// objectHandlers serve the object storage.
type objectHandlers struct {
	store  *uploads.Store
	keys   *api.Keys
	grants *objectGrants
}

// pushAccess is what a client needs to upload files.
type pushAccess struct {
	AccessKey    string `json:"accessKey"`
	Secret       string `json:"secret"`
	Token        string `json:"sessionToken"`
	URL          string `json:"storageUrl"`
	Organization string `json:"organizationId"`
	Bucket       string `json:"bucket"`
	Region       string `json:"region"`
}

// getAccess returns credentials with which the client can upload files for a while.
func (h *objectHandlers) getAccess(c *call) (int, any, error) {
	g := h.grants.newGrant(objectGrant{Owner: c.client.Owner, Key: c.client.KeyID, Until: time.Now().Add(uploads.UploadTime).Unix()})
	return http.StatusOK, pushAccess{
		AccessKey: g.access, Secret: g.secret, Token: g.token, URL: externalURL(c.r) + strings.TrimSuffix(PathObjects, "/"),
		Organization: c.client.Owner, Bucket: bucket, Region: objectRegion,
	}, nil
}

// objectError is an error of the S3 API.
type objectError struct {
	XMLName xml.Name `xml:"Error"`
	Code    string
	Message string
	status  int
}

// Error implements error.
func (e *objectError) Error() string { return e.Code + ": " + e.Message }

func newObjectError(status int, code, message string) *objectError {
	return &objectError{Code: code, Message: message, status: status}
}

// toObjectError converts an error. missing is the code of what does not exist.
func toObjectError(r *http.Request, err error) *objectError {
	if known, ok := asObjectError(err); ok {
		return known
	}
	p := api.ProblemOf(r.Context(), err)
	message := strings.TrimSuffix(p.Detail+"; "+p.Hint, "; ")
	switch p.Code {
	case sandpit.NotFound:
		return newObjectError(http.StatusNotFound, "NoSuchUpload", message)
	case sandpit.Invalid:
		return newObjectError(http.StatusBadRequest, "InvalidRequest", message)
	case sandpit.Unauthenticated:
		return newObjectError(http.StatusForbidden, "InvalidAccessKeyId", message)
	case sandpit.Timeout:
		return newObjectError(http.StatusBadRequest, "RequestTimeout", message)
	case sandpit.Exhausted:
		if sandpit.Retryable(err) {
			return newObjectError(http.StatusServiceUnavailable, "SlowDown", message)
		}
		return newObjectError(http.StatusForbidden, "QuotaExceeded", message)
	default:
		return newObjectError(http.StatusInternalServerError, "InternalError", message)
	}
}

// serveObjects serves all requests for objects.
func (h *objectHandlers) serveObjects(w http.ResponseWriter, r *http.Request) {
	if err := h.serveObject(w, r); err != nil {
		e := toObjectError(r, err)
		writeXML(w, e.status, e)
	}
}

// writeXML sends a response. HEAD has none.
func writeXML(w http.ResponseWriter, status int, body any) {
	text, err := xml.Marshal(body)
	if err != nil {
		status, text = http.StatusInternalServerError, nil
	}
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append([]byte(xml.Header), text...)) //nolint:gosec // no page: xml.Marshal escapes the text; an error means that the client has gone
}

func (h *objectHandlers) serveObject(w http.ResponseWriter, r *http.Request) error {
	grant, err := h.grants.checkRequest(r, time.Now())
	if err != nil {
		return err
	}
	attached, release, err := h.keys.Attach(r.Context(), grant.Key)
	if err != nil {
		return err
	}
	defer release()
	leave, err := api.CountRequest(r, grant.Owner)
	if err != nil {
		return err
	}
	defer leave()
	o := &objectCall{w: w, r: r.WithContext(attached), query: r.URL.Query(), grant: grant, store: h.store}
	return o.serve()
}

// objectCall is a request for objects, by a client that may make it.
type objectCall struct {
	w     http.ResponseWriter
	r     *http.Request
	query map[string][]string
	grant objectGrant
	store *uploads.Store
	name  uploads.Name
	key   string
}

// has reports whether the query has a parameter.
func (o *objectCall) has(name string) bool { _, ok := o.query[name]; return ok }

// get returns a parameter of the query.
func (o *objectCall) get(name string) string { return o.r.URL.Query().Get(name) }

func (o *objectCall) serve() error {
	name, key, _ := strings.Cut(strings.TrimPrefix(o.r.URL.Path, PathObjects), "/")
	if name != bucket {
		return newObjectError(http.StatusNotFound, "NoSuchBucket", "the only bucket is "+bucket)
	}
	if o.key = key; key == "" {
		return o.serveBucket()
	}
	owner, rest, _ := strings.Cut(key, "/")
	hash, file, _ := strings.Cut(rest, "/")
	if o.name = (uploads.Name{Owner: owner, Hash: hash}); owner != o.grant.Owner {
		return newObjectError(http.StatusForbidden, "AccessDenied", "the key must begin with "+o.grant.Owner+"/")
	}
	if !uploads.IsHash(hash) || file != objectName {
		return newObjectError(http.StatusBadRequest, "InvalidRequest", "the key must be "+o.grant.Owner+"/HASH/"+objectName)
	}
	switch o.r.Method {
	case http.MethodHead:
		return o.headObject()
	case http.MethodPut:
		if o.has("partNumber") || o.has("uploadId") {
			return o.putPart()
		}
		return o.putObject()
	case http.MethodPost:
		if o.has("uploads") {
			return o.beginParts()
		}
		return o.completeParts()
	case http.MethodDelete:
		if o.has("uploadId") {
			return o.abortParts()
		}
	}
	return newObjectError(http.StatusNotImplemented, "NotImplemented", "this storage has no "+o.r.Method+" of objects")
}

// objectList is the response to ListObjectsV2.
type objectList struct {
	XMLName   xml.Name `xml:"ListBucketResult"`
	Name      string
	Prefix    string
	KeyCount  int
	MaxKeys   int
	Truncated bool           `xml:"IsTruncated"`
	Contents  []listedObject `xml:"Contents"`
}

type listedObject struct {
	Key          string
	LastModified time.Time
	Size         int64
	StorageClass string
}

// maxObjects is the maximum number of objects in a list.
const maxObjects = 1000

// serveBucket lists objects.
func (o *objectCall) serveBucket() error {
	if o.r.Method == http.MethodHead {
		o.w.WriteHeader(http.StatusOK)
		return nil
	}
	if o.r.Method != http.MethodGet || o.get("list-type") != "2" {
		return newObjectError(http.StatusNotImplemented, "NotImplemented", "of a bucket, this storage has only ListObjectsV2 and HeadBucket")
	}
	list := objectList{Name: bucket, Prefix: o.get("prefix"), MaxKeys: maxObjects}
	if text := o.get("max-keys"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return newObjectError(http.StatusBadRequest, "InvalidArgument", "max-keys: want a number")
		}
		list.MaxKeys = min(n, maxObjects)
	}
	for _, a := range o.store.List(o.grant.Owner) {
		key := o.grant.Owner + "/" + a.Hash + "/" + objectName
		if !strings.HasPrefix(key, list.Prefix) {
			continue
		}
		if list.Truncated = len(list.Contents) == list.MaxKeys; list.Truncated {
			break
		}
		// What a client finds it does not upload again, so that it must not be removed before its build.
		if o.store.HasArchive(uploads.Name{Owner: o.grant.Owner, Hash: a.Hash}) {
			list.Contents = append(list.Contents, listedObject{Key: key, LastModified: a.Used.UTC(), Size: a.Size, StorageClass: "STANDARD"})
		}
	}
	list.KeyCount = len(list.Contents)
	writeXML(o.w, http.StatusOK, list)
	return nil
}

func (o *objectCall) headObject() error {
	for _, a := range o.store.List(o.grant.Owner) {
		if a.Hash == o.name.Hash {
			o.w.Header().Set("Content-Length", strconv.FormatInt(a.Size, 10))
			o.w.WriteHeader(http.StatusOK)
			return nil
		}
	}
	return newObjectError(http.StatusNotFound, "NoSuchKey", "there is no such object")
}

func (o *objectCall) putObject() error {
	body, err := newObjectBody(o.w, o.r)
	if err != nil {
		return err
	}
	if err := o.store.Receive(o.r.Context(), o.name, body.toUpload()); err != nil {
		return err
	}
	o.w.Header().Set("ETag", body.etag())
	o.w.WriteHeader(http.StatusOK)
	return nil
}

// putPart receives a part of an object.
func (o *objectCall) putPart() error {
	number, err := strconv.Atoi(o.get("partNumber"))
	if err != nil {
		return newObjectError(http.StatusBadRequest, "InvalidArgument", "partNumber: want a number")
	}
	body, err := newObjectBody(o.w, o.r)
	if err != nil {
		return err
	}
	if err := o.store.ReceivePart(o.r.Context(), o.name, o.get("uploadId"), number, body.toUpload()); err != nil {
		return err
	}
	o.w.Header().Set("ETag", body.etag())
	o.w.WriteHeader(http.StatusOK)
	return nil
}

func (o *objectCall) beginParts() error {
	id, err := o.store.BeginParts(o.name)
	if err != nil {
		return err
	}
	writeXML(o.w, http.StatusOK, struct {
		XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
		Bucket   string
		Key      string
		UploadId string
	}{Bucket: bucket, Key: o.key, UploadId: id})
	return nil
}

// completionCost is how many bytes of memory each byte of a list of parts takes: as text and as parts.
const completionCost = 12

// maxCompletion is the maximum number of bytes of a list of parts.
const maxCompletion = 4 << 20

func (o *objectCall) completeParts() error {
	body, err := newObjectBody(o.w, o.r)
	if err != nil {
		return err
	}
	var in struct {
		Parts []struct {
			PartNumber int
			ETag       string
		} `xml:"Part"`
	}
	text, err := body.readAll(o.r.Context(), maxCompletion)
	if err == nil {
		err = xml.Unmarshal(text, &in)
	}
	if err != nil {
		return newObjectError(http.StatusBadRequest, "MalformedXML", "the list of parts: "+err.Error())
	}
	parts := make([]uploads.Part, 0, len(in.Parts))
	for _, p := range in.Parts {
		parts = append(parts, uploads.Part{Number: p.PartNumber, ETag: `"` + strings.Trim(p.ETag, `"`) + `"`})
	}
	if err := o.store.CompleteParts(o.r.Context(), o.name, o.get("uploadId"), parts); err != nil {
		return err
	}
	writeXML(o.w, http.StatusOK, struct {
		XMLName  xml.Name `xml:"CompleteMultipartUploadResult"`
		Location string
		Bucket   string
		Key      string
		ETag     string
	}{Location: externalURL(o.r) + o.r.URL.Path, Bucket: bucket, Key: o.key, ETag: `"` + o.name.Hash + `"`})
	return nil
}

func (o *objectCall) abortParts() error {
	if err := o.store.AbortParts(o.name, o.get("uploadId")); err != nil {
		return err
	}
	o.w.WriteHeader(http.StatusNoContent)
	return nil
}
