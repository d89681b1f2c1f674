// Package mirror fetches files with known digests from untrusted servers and stores them in a
// directory.
package mirror

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

// Unfinished is the suffix of files that are being written.
const Unfinished = ".tmp"

const (
	fetchers       = 4 // files that are fetched concurrently
	unusedFor      = 30 * 24 * time.Hour
	unfinishedFor  = 24 * time.Hour
	connectTimeout = 15 * time.Second
	idleTimeout    = 30 * time.Second // without any byte
	maxRedirects   = 5
)

// Options configure a Client.
type Options struct {
	// Dir stores the files; it is created if missing. Files that were not used for a month are
	// removed. Any number of processes may share it.
	Dir string
	// Keep is the suffix of files in Dir that are never removed. Default: no such files.
	Keep string
	// Bases are the URLs (http or https) of the servers, tried in this order.
	Bases []string
	// Progress reports how many bytes of Total are fetched. It is called by one goroutine at
	// a time. Default: no reports.
	Progress func(done, total int64)
	// Total is the size of all files in bytes. Default: unknown.
	Total int64
	// Bounds limit the disk space.
	Bounds Bounds
}

// Bounds limit the disk space of fetched files. The zero value of a field is no limit.
type Bounds struct {
	// Kept is the largest size of Dir in bytes when a client is opened. Files that were used
	// least recently are removed first.
	Kept int64
	// Fetched is how many bytes one client may fetch, including files found in Dir.
	Fetched int64
	// Check is called before a file is fetched and repeatedly during the fetch, concurrently.
	// An error ends the fetch.
	Check func() error
}

// Client fetches files. Its methods may be called concurrently.
type Client struct {
	o    Options
	http *http.Client

	mu   sync.Mutex
	done int64
}

// Pin identifies the contents of a file.
type Pin struct {
	// Digest is the SHA-256 or SHA-512 digest in hexadecimal; its length tells which.
	Digest string
	// Size is its size in bytes. Default: any size up to Limit.
	Size int64
	// Limit bounds the size in bytes if Size is 0.
	Limit int64
}

func (p Pin) maxSize() int64 {
	if p.Size > 0 {
		return p.Size
	}
	return p.Limit
}

func (p Pin) newHash() hash.Hash {
	if len(p.Digest) == hex.EncodedLen(sha512.Size) {
		return sha512.New()
	}
	return sha256.New()
}

// matches reports whether n bytes with the hash h are the file.
func (p Pin) matches(n int64, h hash.Hash) bool {
	return (p.Size == 0 || n == p.Size) && n <= p.maxSize() && hex.EncodeToString(h.Sum(nil)) == p.Digest
}

// Open returns a client, and removes old files from its directory. The caller closes the client.
func Open(o Options) (*Client, error) {
	c := &Client{o: o}
	c.http = &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: connectTimeout}).DialContext,
			TLSHandshakeTimeout:    connectTimeout,
			ResponseHeaderTimeout:  idleTimeout,
			MaxResponseHeaderBytes: 64 << 10,
			MaxIdleConnsPerHost:    fetchers,
			DisableCompression:     true, // digests are computed from the received bytes
		},
		CheckRedirect: checkRedirect,
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	return c, errors.Join(c.removeUnused(), c.trimToSize())
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// checkRedirect rejects redirects to other hosts, which may trust this machine.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return sandpit.Errorf(sandpit.Unavailable, "too many redirects")
	}
	if r.URL.Hostname() != via[0].URL.Hostname() || r.URL.Port() != via[0].URL.Port() && r.URL.Scheme != "https" {
		return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "redirect to another host, %.100q", r.URL.Host), "if it is a mirror, configure it")
	}
	return nil
}

// removeUnused removes files that were not used for unusedFor, and unfinished files of killed
// processes.
func (c *Client) removeUnused() error {
	entries, err := os.ReadDir(c.o.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed by another process
		}
		if err != nil {
			return err
		}
		longest := unusedFor
		if strings.HasSuffix(e.Name(), Unfinished) {
			longest = unfinishedFor
		}
		if !info.Mode().IsRegular() || time.Since(info.ModTime()) < longest || c.o.Keep != "" && strings.HasSuffix(e.Name(), c.o.Keep) {
			continue
		}
		if err := os.Remove(filepath.Join(c.o.Dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// trimToSize removes files of Dir, least recently used first, until the rest fits. Another
// client can still read a removed file that it has open.
func (c *Client) trimToSize() error {
	if c.o.Bounds.Kept <= 0 {
		return nil
	}
	entries, err := os.ReadDir(c.o.Dir)
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	var sum int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || strings.HasSuffix(e.Name(), Unfinished) || c.o.Keep != "" && strings.HasSuffix(e.Name(), c.o.Keep) {
			continue // it was removed, is in use, or is never removed
		}
		files, sum = append(files, info), sum+info.Size()
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, f := range files {
		if sum <= c.o.Bounds.Kept {
			return nil
		}
		if err := os.Remove(filepath.Join(c.o.Dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		sum -= f.Size()
	}
	return nil
}

// checkBounds returns an error if no more may be fetched.
func (c *Client) checkBounds() error {
	c.mu.Lock()
	done := c.done
	c.mu.Unlock()
	if most := c.o.Bounds.Fetched; most > 0 && done > most {
		return sandpit.Errorf(sandpit.Exhausted, "the packages exceed %d bytes", most)
	}
	if c.o.Bounds.Check != nil {
		return c.o.Bounds.Check()
	}
	return nil
}

// checkedReader is a reader that fails when no more may be fetched.
type checkedReader struct {
	io.Reader
	client *Client
	next   int64 // bytes until the next check
}

const checkEvery = 8 << 20 // bytes

// Read implements io.Reader.
func (r *checkedReader) Read(p []byte) (int, error) {
	if r.next <= 0 {
		if err := r.client.checkBounds(); err != nil {
			return 0, err
		}
		r.next = checkEvery
	}
	n, err := r.Reader.Read(p)
	r.next -= int64(n)
	return n, err
}

// Get returns a file from the first server that has it.
//
// Exhausted: it has more than limit bytes. NotFound: no such file. Unavailable, Timeout: no
// server responds.
func (c *Client) Get(ctx context.Context, path string, limit int64) (data []byte, err error) {
	err = c.tryEach(ctx, path, func(r io.Reader) error {
		data, err = ReadAtMost(r, limit)
		return err
	})
	return data, err
}

// File returns a file with known contents, from the directory if it is there. The caller closes
// it.
//
// NotFound: no such file. Unavailable, Timeout: no server sends these contents.
func (c *Client) File(ctx context.Context, path string, want Pin) (*os.File, error) {
	name := filepath.Join(c.o.Dir, want.Digest)
	f, err := openPinned(name, want)
	if err != nil || f != nil {
		if f != nil {
			c.addFile(f)
			c.Used(want.Digest)
			if err = c.checkBounds(); err != nil {
				return nil, errors.Join(err, f.Close())
			}
		}
		return f, err
	}
	fresh, err := atomicfile.New(name, 0o600, atomicfile.Pattern("*"+Unfinished),
		atomicfile.NoSync("openPinned checks the digest, and a damaged file is fetched again"))
	if err != nil {
		return nil, err
	}
	// If a mirror sends other contents, the next one is tried.
	err = c.tryEach(ctx, path, func(r io.Reader) error { return c.copyPinned(fresh.File, r, want) })
	if err == nil {
		err = fresh.Rename()
	}
	if err == nil {
		_, err = fresh.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, fresh.Discard())
	}
	return fresh.File, nil
}

// openPinned opens a file of the directory, or returns nil if it is missing or damaged.
func openPinned(name string, want Pin) (*os.File, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h := want.newHash()
	n, err := io.Copy(h, io.LimitReader(f, want.maxSize()+1))
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil || !want.matches(n, h) {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Used records that a file of the directory is used now.
func (c *Client) Used(name string) {
	now := time.Now()
	_ = os.Chtimes(filepath.Join(c.o.Dir, name), now, now) // it may have been removed
}

// copyPinned copies r to f. Unavailable: the contents are not those of want.
func (c *Client) copyPinned(f *os.File, r io.Reader, want Pin) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	h := want.newHash()
	n, err := io.Copy(io.MultiWriter(f, h, progressWriter{c}), io.LimitReader(&checkedReader{Reader: r, client: c}, want.maxSize()+1))
	if err != nil || want.matches(n, h) {
		return err
	}
	c.addBytes(-n)
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the contents from the mirror do not match their digest"),
		"the mirror may be updating: try again later, or use another one")
}

// tryEach requests path from the mirrors in order until use succeeds with a response. If all
// fail, it returns the last error.
func (c *Client) tryEach(ctx context.Context, path string, use func(io.Reader) error) error {
	var failed error
	for _, base := range c.o.Bases {
		err := c.fetchFrom(ctx, strings.TrimSuffix(base, "/")+"/"+path, use)
		if err == nil {
			return nil
		}
		failed = fmt.Errorf("%s: %w", path, err)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return failed
}

// fetchFrom calls use with the body of one response. The request is canceled if no bytes arrive
// for idleTimeout.
func (c *Client) fetchFrom(ctx context.Context, url string, use func(io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	req.Header.Set("User-Agent", "sandpit")
	resp, err := c.http.Do(req)
	if err != nil {
		return sandpit.Errorf(sandpit.Unavailable, "%w", err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return sandpit.Errorf(sandpit.NotFound, "the mirror does not have the file")
	case resp.StatusCode != http.StatusOK:
		return sandpit.Errorf(sandpit.Unavailable, "the mirror responded with status %d", resp.StatusCode)
	}
	slow := sandpit.Errorf(sandpit.Timeout, "the mirror has sent nothing for %s", idleTimeout)
	timer := time.AfterFunc(idleTimeout, func() { cancel(slow) })
	defer timer.Stop()
	err = use(idleReader{resp.Body, timer})
	if err != nil && errors.Is(context.Cause(ctx), slow) {
		return slow
	}
	if err != nil && sandpit.CodeOf(err) == sandpit.Internal {
		return sandpit.Errorf(sandpit.Unavailable, "%w", err)
	}
	return err
}

// idleReader resets a timer whenever bytes arrive.
type idleReader struct {
	io.Reader
	timer *time.Timer
}

func (a idleReader) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if n > 0 {
		a.timer.Reset(idleTimeout)
	}
	return n, err
}

// progressWriter counts written bytes for progress and bounds.
type progressWriter struct{ c *Client }

func (w progressWriter) Write(p []byte) (int, error) {
	w.c.addBytes(int64(len(p)))
	return len(p), nil
}

func (c *Client) addFile(f *os.File) {
	if info, err := f.Stat(); err == nil { // otherwise only progress is wrong
		c.addBytes(info.Size())
	}
}

func (c *Client) addBytes(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const step = 1 << 20
	before := c.done
	c.done += n
	if c.o.Progress != nil && (before/step != c.done/step || c.done == c.o.Total) {
		c.o.Progress(c.done, c.o.Total)
	}
}

// ReadAtMost reads all of r.
//
// Exhausted: it has more than limit bytes.
func ReadAtMost(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = sandpit.Errorf(sandpit.Exhausted, "more than %d bytes", limit)
	}
	return data, err
}
