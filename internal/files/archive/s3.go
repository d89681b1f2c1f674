package archive

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/sandpit-dev/sandpit"
)

// S3Options configure an S3 store. URL, Access and Secret are required; the zero value of another field means the
// default stated with it.
type S3Options struct {
	// URL is "https://host/bucket", optionally followed by a slash and a prefix for all keys. The bucket must exist.
	// Only stores on this machine may be used without TLS.
	URL string
	// Access and Secret are the access key and secret key of an account that may read, write, list and delete.
	Access, Secret string
	// Region is the bucket's region. Default: the client asks the store.
	Region string
	// Roots are certificates in PEM form, one of which must have signed the store's certificate. Default: the
	// machine's trusted certificates.
	Roots []byte
}

// S3 is a Store with the protocol of Amazon S3.
type S3 struct {
	client         *minio.Client
	transport      *http.Transport
	bucket, prefix string
}

var _ Store = (*S3)(nil)

const (
	// partSize is how much of an object is in memory during Put. An object can have 10,000 parts.
	partSize        = 32 << 20
	maxRetries      = 3
	s3HeaderTimeout = time.Minute // until the response begins
)

// OpenS3 returns a store. It does not contact it yet.
func OpenS3(o S3Options) (*S3, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.User != nil { // not quoted, because it may contain a password
		return nil, sandpit.Errorf(sandpit.Invalid, "the URL of the archive is invalid or contains a password")
	}
	bucket, prefix, _ := strings.Cut(strings.Trim(u.Path, "/"), "/")
	if u.Hostname() == "" || bucket == "" || u.RawQuery != "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, sandpit.Errorf(sandpit.Invalid, "the archive %q: want a URL such as https://host/bucket/prefix", o.URL)
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, sandpit.Errorf(sandpit.Invalid, "the archive %q: want https; http is only for a store on this machine", o.URL)
	}
	if o.Access == "" || o.Secret == "" {
		return nil, sandpit.Errorf(sandpit.Invalid, "the archive %q needs an access key and a secret key", o.URL)
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: s3HeaderTimeout,
		IdleConnTimeout:       time.Minute,
		DisableCompression:    true,
	}
	if len(o.Roots) > 0 {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(o.Roots) {
			return nil, sandpit.Errorf(sandpit.Invalid, "the archive's root certificates are not in PEM form")
		}
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds: credentials.NewStaticV4(o.Access, o.Secret, ""), Secure: u.Scheme == "https", Region: o.Region,
		Transport: transport, MaxRetries: maxRetries,
	})
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "the archive %q: %w", o.URL, err)
	}
	return &S3{client: client, transport: transport, bucket: bucket, prefix: prefix}, nil
}

// Close closes idle connections.
func (s *S3) Close() { s.transport.CloseIdleConnections() }

func (s *S3) objectName(key string) string { return path.Join(s.prefix, key) }

// Put implements Store. The store verifies each part, and the object exists only when all parts have arrived.
func (s *S3) Put(ctx context.Context, key string, from io.Reader) error {
	if err := checkKey(key); err != nil {
		return err
	}
	// With an unknown size it is sent in parts as they are read.
	_, err := s.client.PutObject(ctx, s.bucket, s.objectName(key), contextReader{ctx, from}, -1, minio.PutObjectOptions{
		PartSize: partSize, SendContentMd5: true, ContentType: "application/octet-stream",
	})
	return toError(ctx, "put", key, err)
}

// Get implements Store.
func (s *S3) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	object, err := s.client.GetObject(ctx, s.bucket, s.objectName(key), minio.GetObjectOptions{})
	if err != nil {
		return nil, toError(ctx, "get", key, err)
	}
	if _, err := object.Stat(); err != nil { // GetObject sends no request
		_ = object.Close() // nothing was read
		return nil, toError(ctx, "get", key, err)
	}
	return object, nil
}

// Remove implements Store. It also removes incomplete uploads.
func (s *S3) Remove(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	err := s.client.RemoveIncompleteUpload(ctx, s.bucket, s.objectName(key))
	if err == nil || minio.ToErrorResponse(err).Code == minio.NoSuchUpload {
		err = s.client.RemoveObject(ctx, s.bucket, s.objectName(key), minio.RemoveObjectOptions{})
	}
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return nil
	}
	return toError(ctx, "remove", key, err)
}

// List implements Store.
func (s *S3) List(ctx context.Context) ([]Object, error) {
	prefix := ""
	if s.prefix != "" {
		prefix = s.prefix + "/"
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing
	var list []Object
	for o := range s.client.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return nil, toError(ctx, "list", "what is", o.Err)
		}
		key := strings.TrimPrefix(o.Key, prefix)
		if checkKey(key) == nil {
			list = append(list, Object{Key: key, Size: o.Size, CreatedAt: o.LastModified})
		}
	}
	slices.SortFunc(list, func(a, b Object) int { return strings.Compare(a.Key, b.Key) })
	return list, nil
}

// toError gives an error of the library a code. Such an error contains no secret: keys are only used for signatures.
func toError(ctx context.Context, what, key string, err error) error {
	if err == nil {
		return nil
	}
	code := sandpit.Internal
	var network net.Error
	switch r := minio.ToErrorResponse(err); {
	case ctx.Err() != nil:
		return fmt.Errorf("%s %s in the archive: %w", what, key, context.Cause(ctx))
	case sandpit.CodeOf(err) != sandpit.Internal: // an error of the reader
		code = sandpit.CodeOf(err)
	case r.Code == minio.NoSuchKey:
		code = sandpit.NotFound
	case r.Code == minio.NoSuchBucket:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "%s %s in the archive: %w", what, key, err), "create the bucket")
	case r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized:
		code = sandpit.PermissionDenied
	case r.StatusCode >= http.StatusInternalServerError, r.StatusCode == http.StatusTooManyRequests,
		errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF):
		code = sandpit.Unavailable
	}
	return sandpit.Errorf(code, "%s %s in the archive: %w", what, key, err)
}
