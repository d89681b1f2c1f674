package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	unfinished     = ".tmp"
	unusedFor      = 30 * 24 * time.Hour
	unfinishedFor  = 24 * time.Hour
	connectTimeout = 15 * time.Second
	idleTimeout    = 30 * time.Second // without any byte
	maxInRelease   = 4 << 20          // bytes
	maxIndex       = 256 << 20        // bytes, packed
	maxDeb         = 4 << 30          // bytes
	maxRedirects   = 5
)

// client speaks to mirrors for one request.
type client struct {
	dir     string
	mirrors []string
	keys    []byte
	now     func() time.Time
	http    *http.Client

	mu       sync.Mutex
	progress Progress
	done     int64
	total    int64
}

func (s Source) open() (*client, error) {
	c := &client{dir: s.Dir, mirrors: s.Mirrors, keys: s.Keys, now: s.Now}
	if len(c.mirrors) == 0 {
		c.mirrors = []string{Host}
	}
	if c.keys == nil {
		c.keys = archiveKeys
	}
	if c.now == nil {
		c.now = time.Now
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: connectTimeout}).DialContext,
			TLSHandshakeTimeout:    connectTimeout,
			ResponseHeaderTimeout:  idleTimeout,
			MaxResponseHeaderBytes: 64 << 10,
			MaxIdleConnsPerHost:    fetchers,
			DisableCompression:     true, // digests are of the bytes as they are
		},
		CheckRedirect: checkRedirect,
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	return c, c.sweep()
}

// checkRedirect keeps a mirror from having us ask others, who may trust this machine.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return sandpit.Errorf(sandpit.Unavailable, "it leads to itself")
	}
	if r.URL.Hostname() != via[0].URL.Hostname() || r.URL.Port() != via[0].URL.Port() && r.URL.Scheme != "https" {
		return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "it leads to %.100q", r.URL.Host), "name that mirror, if it is one")
	}
	return nil
}

func (c *client) close() { c.http.CloseIdleConnections() }

// sweep removes what nobody has used for long, and what killed processes have left.
func (c *client) sweep() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // somebody else is sweeping
		}
		if err != nil {
			return err
		}
		longest := unusedFor
		if strings.HasSuffix(e.Name(), unfinished) {
			longest = unfinishedFor
		}
		if !info.Mode().IsRegular() || time.Since(info.ModTime()) < longest || strings.HasSuffix(e.Name(), seenSuffix) {
			continue
		}
		if err := os.Remove(filepath.Join(c.dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// get returns a small file of the first mirror that has it.
func (c *client) get(ctx context.Context, path string, limit int64) (data []byte, err error) {
	err = c.each(ctx, path, func(r io.Reader) error {
		data, err = readAtMost(r, limit)
		return err
	})
	return data, err
}

// file returns a file whose contents are known, from the directory if it is there. Who
// calls it closes it.
func (c *client) file(ctx context.Context, path string, want pinned) (*os.File, error) {
	name := filepath.Join(c.dir, want.sha256)
	f, err := openPinned(name, want)
	if err != nil || f != nil {
		if f != nil {
			c.add(want.size)
			c.used(want.sha256)
		}
		return f, err
	}
	if f, err = os.CreateTemp(c.dir, "*"+unfinished); err != nil {
		return nil, err
	}
	// Each mirror is tried: one that has other bytes does not keep us from the next.
	err = c.each(ctx, path, func(r io.Reader) error { return c.copyPinned(f, r, want) })
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.RemoveAll(f.Name()))
	}
	return f, nil
}

// openPinned opens a file of the directory, if it is there and still what it was.
func openPinned(name string, want pinned) (*os.File, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil || n != want.size || hex.EncodeToString(h.Sum(nil)) != want.sha256 {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// used keeps a file from being swept.
func (c *client) used(name string) {
	now := time.Now()
	_ = os.Chtimes(filepath.Join(c.dir, name), now, now) // somebody may have swept it
}

// copyPinned writes what r has to f, if it is what it must be.
func (c *client) copyPinned(f *os.File, r io.Reader, want pinned) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h, counter{c}), io.LimitReader(r, want.size+1))
	if err != nil || n == want.size && hex.EncodeToString(h.Sum(nil)) == want.sha256 {
		return err
	}
	c.add(-n)
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the mirror has other bytes than the archive has signed"),
		"the mirror may be at the middle of an update: try again later, or another one")
}

// each asks mirrors until one's answer is good, and returns the last one's error.
func (c *client) each(ctx context.Context, path string, use func(io.Reader) error) error {
	var failed error
	for _, mirror := range c.mirrors {
		err := c.ask(ctx, "http://"+strings.TrimSuffix(mirror, "/")+"/"+path, use)
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

// ask gives the body of one answer to use. An answer that stands still ends.
func (c *client) ask(ctx context.Context, url string, use func(io.Reader) error) error {
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
		return sandpit.Errorf(sandpit.NotFound, "the mirror does not have it")
	case resp.StatusCode != http.StatusOK:
		return sandpit.Errorf(sandpit.Unavailable, "the mirror answers with status %d", resp.StatusCode)
	}
	slow := sandpit.Errorf(sandpit.Timeout, "the mirror has sent nothing for %s", idleTimeout)
	timer := time.AfterFunc(idleTimeout, func() { cancel(slow) })
	defer timer.Stop()
	err = use(alive{resp.Body, timer})
	if err != nil && errors.Is(context.Cause(ctx), slow) {
		return slow
	}
	if err != nil && sandpit.CodeOf(err) == sandpit.Internal {
		return sandpit.Errorf(sandpit.Unavailable, "%w", err)
	}
	return err
}

// alive puts a timer off whenever something comes.
type alive struct {
	io.Reader
	timer *time.Timer
}

func (a alive) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if n > 0 {
		a.timer.Reset(idleTimeout)
	}
	return n, err
}

// counter counts what is written for whoever wants to know.
type counter struct{ c *client }

func (w counter) Write(p []byte) (int, error) {
	w.c.add(int64(len(p)))
	return len(p), nil
}

func (c *client) add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const step = 1 << 20
	before := c.done
	c.done += n
	if c.progress != nil && (before/step != c.done/step || c.done == c.total) {
		c.progress(c.done, c.total)
	}
}
