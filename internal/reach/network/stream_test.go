package network_test

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

// noise is data that is the same for the same seed.
func noise(seed byte, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(data) // never fails
	return data
}

// TestStreams copies what comes in pieces of all sizes, more streams at a time than there
// are large buffers, and has none of those left in use.
func TestStreams(t *testing.T) {
	t.Parallel()
	var s network.Streams
	data := noise(1, 2*network.LargeBuffer+12345)
	sources := map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r }, "half": iotest.HalfReader, "early end": iotest.DataErrReader,
		"torn": func(r io.Reader) io.Reader { return torn{r, rand.New(rand.NewPCG(1, 2))} },
	}
	var all sync.WaitGroup
	for name, source := range sources {
		for range network.LargeCount/2 + 1 {
			all.Go(func() {
				var got bytes.Buffer
				if err := s.Copy(&got, source(bytes.NewReader(data))); err != nil || !bytes.Equal(got.Bytes(), data) {
					t.Errorf("%s: %d of %d bytes, %v", name, got.Len(), len(data), err)
				}
			})
		}
	}
	all.Wait()
	if err := s.Copy(io.Discard, io.MultiReader(bytes.NewReader(data), iotest.ErrReader(io.ErrClosedPipe))); err != io.ErrClosedPipe { //nolint:errorlint // as it is
		t.Errorf("a broken source: %v", err)
	}
	full, peer := net.Pipe()
	_ = peer.Close()
	if err := s.Copy(full, bytes.NewReader(data)); err == nil {
		t.Error("a broken target: no error")
	}
	if n := s.Used(); n != 0 {
		t.Errorf("%d large buffers are in use", n)
	}
}

// torn hands out pieces of random sizes.
type torn struct {
	io.Reader

	sizes *rand.Rand
}

func (r torn) Read(p []byte) (int, error) { return r.Reader.Read(p[:1+r.sizes.IntN(len(p))]) }

// TestMuchAtATime carries much both ways on more connections than may have wide buffers,
// over a link that is soon full. All of it arrives, and the buffers are given back.
func TestMuchAtATime(t *testing.T) {
	t.Parallel()
	const size, count = 256 << 10, network.WideCount + 16
	n := newInternet()
	n.serve(t, echo, public4)
	b := newBox(t, n, network.Config{})
	var all sync.WaitGroup
	for i := range count {
		conn, err := b.dial(public4)
		if err != nil {
			t.Fatal(err)
		}
		data := noise(byte(i), size)
		all.Go(func() {
			if _, err := conn.Write(data); err != nil {
				t.Errorf("write: %v", err)
			}
			if half, ok := conn.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
				t.Error("its end was not sent")
			}
		})
		all.Go(func() {
			sum := sha256.New()
			if _, err := io.Copy(sum, conn); err != nil || !bytes.Equal(sum.Sum(nil), sum256(data)) {
				t.Errorf("connection %d: other data came back, %v", i, err)
			}
		})
	}
	all.Wait()
	for end := time.Now().Add(patience); b.Wide() != 0 || b.Large() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections still have wide buffers, %d large ones are in use", b.Wide(), b.Large())
		}
	}
}

func sum256(data []byte) []byte {
	sum := sha256.Sum256(data)
	return sum[:]
}
