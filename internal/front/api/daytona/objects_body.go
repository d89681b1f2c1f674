package daytona

import (
	"bufio"
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // ETags of S3 are MD5; nothing relies on them
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"hash/crc32"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/uploads"
)

// The values of headerDigest besides a digest.
const (
	digestNone    = "UNSIGNED-PAYLOAD"
	digestTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

// objectBody is the body of a request for objects. Its last read fails if the content does not have
// the digests that the client has sent.
type objectBody struct {
	from    io.Reader
	size    int64
	control *http.ResponseController
	sum     hash.Hash // MD5
	digests []bodyDigest
	trailer http.Header // of a body in chunks
}

// bodyDigest is a digest that the content must have.
type bodyDigest struct {
	name string
	hash hash.Hash
	want func() string
	text func([]byte) string
}

// checksums are the checksums of S3 that are checked, by the end of their header's name.
var checksums = map[string]func() hash.Hash{
	"crc32": func() hash.Hash { return crc32.NewIEEE() }, "crc32c": func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
	"sha256": sha256.New,
}

const headerChecksum = "X-Amz-Checksum-"

// newObjectBody returns the body of a request.
func newObjectBody(w http.ResponseWriter, r *http.Request) (*objectBody, error) {
	b := &objectBody{
		from: http.MaxBytesReader(w, r.Body, 2*uploads.MaxBytes), size: r.ContentLength, control: http.NewResponseController(w),
		sum: md5.New(), trailer: http.Header{}, //nolint:gosec // as above
	}
	switch digest := r.Header.Get(headerDigest); {
	case digest == digestTrailer:
		size, err := strconv.ParseInt(r.Header.Get("X-Amz-Decoded-Content-Length"), 10, 64)
		if err != nil || size < 0 {
			return nil, newObjectError(http.StatusBadRequest, "MissingContentLength", "X-Amz-Decoded-Content-Length: want a number")
		}
		b.size, b.from = size, &chunkReader{from: bufio.NewReader(b.from), trailer: b.trailer}
	case digest == digestNone:
	case len(digest) == hex.EncodedLen(sha256.Size):
		b.digests = append(b.digests, bodyDigest{headerDigest, sha256.New(), func() string { return digest }, hex.EncodeToString})
	default:
		return nil, newObjectError(http.StatusNotImplemented, "NotImplemented", headerDigest+": want a digest, "+digestNone+" or "+digestTrailer)
	}
	for name, newHash := range checksums {
		header := headerChecksum + name
		if r.Header.Get(header) == "" && !strings.Contains(strings.ToLower(r.Header.Get("X-Amz-Trailer")), strings.ToLower(header)) {
			continue
		}
		want := func() string { return r.Header.Get(header) + b.trailer.Get(header) }
		b.digests = append(b.digests, bodyDigest{header, newHash(), want, base64.StdEncoding.EncodeToString})
	}
	return b, nil
}

// Read implements io.Reader.
func (b *objectBody) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	_, _ = b.sum.Write(p[:n]) // never fails
	for _, d := range b.digests {
		_, _ = d.hash.Write(p[:n]) // as above
	}
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	for _, d := range b.digests {
		if got := d.text(d.hash.Sum(nil)); got != d.want() {
			return n, newObjectError(http.StatusBadRequest, "BadDigest", d.name+" does not match the content")
		}
	}
	return n, err
}

// toUpload returns the body as an upload.
func (b *objectBody) toUpload() uploads.Upload {
	return uploads.Upload{Body: b, Size: b.size, ETag: b.etag, Connection: b.control}
}

// etag returns the ETag of the content that was read.
func (b *objectBody) etag() string { return `"` + hex.EncodeToString(b.sum.Sum(nil)) + `"` }

// readAll returns the content, of limited size.
func (b *objectBody) readAll(ctx context.Context, most int64) ([]byte, error) {
	text, err := memory.ReadAll(ctx, b, most+1, completionCost)
	if err == nil && int64(len(text)) > most {
		err = newObjectError(http.StatusBadRequest, "EntityTooLarge", "the request is too large")
	}
	return text, err
}

// chunkReader reads a body in the chunks of S3: the size in hexadecimal, the content, and after the
// last chunk, which is empty, a trailer.
type chunkReader struct {
	from    *bufio.Reader
	left    int64 // of the chunk
	ended   bool
	trailer http.Header
}

// maxTrailers is the maximum number of lines of a trailer.
const maxTrailers = 16

// Read implements io.Reader.
func (c *chunkReader) Read(p []byte) (int, error) {
	for c.left == 0 {
		if c.ended {
			return 0, io.EOF
		}
		if err := c.nextChunk(); err != nil {
			return 0, err
		}
	}
	n, err := c.from.Read(p[:min(int64(len(p)), c.left)])
	if c.left -= int64(n); c.left == 0 && err == nil {
		err = c.expectLine("")
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// readLine reads a line without its end.
func (c *chunkReader) readLine() (string, error) {
	line, err := c.from.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return "", err
	}
	return string(bytes.TrimRight(line, "\r\n")), nil
}

func errChunk() error {
	return newObjectError(http.StatusBadRequest, "IncompleteBody", "the body does not consist of chunks")
}

func (c *chunkReader) expectLine(want string) error {
	line, err := c.readLine()
	if err == nil && line != want {
		err = errChunk()
	}
	return err
}

// nextChunk reads the size of the next chunk, or the trailer.
func (c *chunkReader) nextChunk() error {
	line, err := c.readLine()
	if err != nil {
		return err
	}
	size, _, _ := strings.Cut(line, ";")
	if c.left, err = strconv.ParseInt(size, 16, 64); err != nil || c.left < 0 {
		c.left = 0
		return errChunk()
	}
	if c.left > 0 {
		return nil
	}
	c.ended = true
	for range maxTrailers {
		line, err := c.readLine()
		if err != nil || line == "" {
			return err
		}
		name, value, _ := strings.Cut(line, ":")
		c.trailer.Set(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return errChunk()
}
