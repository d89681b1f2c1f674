package tlscert

import (
	"crypto/tls"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// lookEvery is how often it is looked whether files have changed, at most.
const lookEvery = time.Second

// Files returns a configuration with a certificate and its key from files in PEM form.
// When the files change, new connections use the new certificate. Invalid files are
// reported to log, which may be nil, and the old certificate is kept.
//
// Invalid: the files have no certificate or key, or do not match.
func Files(certFile, keyFile string, log *slog.Logger) (*tls.Config, error) {
	f := &files{names: [2]string{certFile, keyFile}, log: orSilent(log), now: time.Now}
	f.seen = f.statFiles()
	pair, err := f.loadCertificate()
	if err != nil {
		return nil, err
	}
	f.pair, f.looked = pair, f.now()
	return newConfig(f.getCertificate), nil
}

// files caches the files that were read last.
type files struct {
	names [2]string // of the certificate and of the key
	log   *slog.Logger
	now   func() time.Time

	mu     sync.Mutex
	pair   *tls.Certificate
	seen   [2]stamp // what the files were when they were read last
	looked time.Time
}

// stamp changes with a file.
type stamp struct {
	inode    uint64
	size     int64
	modified time.Time
	changed  syscall.Timespec
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), modified: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode, s.changed = st.Ino, st.Ctim
	}
	return s
}

// statFiles returns the current stamps of the files; a missing file has a stamp of its own.
func (f *files) statFiles() (now [2]stamp) {
	for i, name := range f.names {
		if info, err := os.Stat(name); err == nil {
			now[i] = stampOf(info)
		}
	}
	return now
}

func (f *files) loadCertificate() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.names[0], f.names[1])
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "certificate of the server: %w", err)
	}
	if pair.Leaf != nil && f.now().After(pair.Leaf.NotAfter) {
		f.log.Warn("the certificate of the server has expired", slog.String("file", f.names[0]), slog.Time("expired", pair.Leaf.NotAfter))
	}
	return &pair, nil
}

// getCertificate is tls.Config.GetCertificate.
func (f *files) getCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if now.Sub(f.looked).Abs() < lookEvery {
		return f.pair, nil
	}
	f.looked = now
	// What is seen is noted before it is read: a change between the two is seen next time.
	seen := f.statFiles()
	if seen == f.seen {
		return f.pair, nil
	}
	f.seen = seen
	pair, err := f.loadCertificate()
	if err != nil {
		f.log.Warn("the new certificate of the server cannot be used, and the old one is kept", slog.Any("error", err))
		return f.pair, nil
	}
	f.pair = pair
	f.log.Info("the server has a new certificate", slog.String("file", f.names[0]))
	return pair, nil
}
