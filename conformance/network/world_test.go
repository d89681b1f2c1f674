package network_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// The ports where the world answers, at every address.
const (
	portEcho  = 7 // also by UDP
	portSpeed = 9
	portSSH   = 22
	portDNS   = 53 // also by UDP
	portHTTP  = 80
	portTLS   = 443 // UDP: an echo
	portDoT   = 853
)

// world is all servers that sandboxes could reach.
type world struct {
	tb    testing.TB
	tasks sync.WaitGroup
	tls   *tls.Config

	mu    sync.Mutex
	heard map[string]int      // connections and datagrams, by "tcp ADDRESS"
	names map[string][]answer // by name, without the last dot
	asked map[string]int
}

// answer is what the world's name server says to one question; the last one is
// repeated.
type answer struct {
	alias     []string
	addresses []string
	ttl       uint32
}

// newWorld has servers outside of the machine, and the same at its own addresses.
func newWorld(t *testing.T, outside place) *world {
	t.Helper()
	w := &world{tb: t, tls: serverTLS(t), heard: make(map[string]int), names: make(map[string][]answer), asked: make(map[string]int)}
	t.Cleanup(w.tasks.Wait) // after everything is closed
	for _, in := range []place{here, outside} {
		w.serveAll(t, in)
	}
	return w
}

// serveAll has servers at all addresses of a namespace.
func (w *world) serveAll(t *testing.T, in place) {
	t.Helper()
	for port, serve := range map[int]func(net.Conn){
		portEcho: echo, portSSH: echo, portSpeed: speed, portDNS: w.serveQuestions,
		portTLS: w.echoTLS, portDoT: func(c net.Conn) { w.serveQuestions(tls.Server(c, w.tls)) },
	} {
		w.serve(t, in, port, serve)
	}
	w.serveHTTP(t, in)
	same := func(packet []byte) []byte { return packet }
	for port, handle := range map[int]func([]byte) []byte{portEcho: same, portTLS: same, portDNS: func(q []byte) []byte { return w.reply(q, 1232) }} {
		w.servePackets4(t, in, port, handle)
		w.servePackets6(t, in, port, handle)
	}
}

func (w *world) note(proto string, addr netip.AddrPort) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard[proto+" "+netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()).String()]++
}

// hears reports whether anything came to an address.
func (w *world) hears(proto, addr string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heard[proto+" "+addr] > 0
}

func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.heard)
}

func (w *world) serve(t *testing.T, in place, port int, handle func(net.Conn)) {
	t.Helper()
	ln := listen(t.Context(), t, in, port)
	t.Cleanup(func() { _ = ln.Close() })
	w.tasks.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			w.note("tcp", netip.MustParseAddrPort(conn.LocalAddr().String()))
			stop := context.AfterFunc(t.Context(), func() { _ = conn.Close() })
			w.tasks.Go(func() { defer stop(); defer conn.Close(); handle(conn) })
		}
	})
}

func echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

func (w *world) echoTLS(conn net.Conn) { echo(tls.Server(conn, w.tls)) }

// speed sends, or takes, as many bytes as the first line says.
func speed(conn net.Conn) {
	r := bufio.NewReader(conn)
	line, _ := r.ReadString('\n')
	way, count, _ := strings.Cut(strings.TrimSpace(line), " ")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil {
		return
	}
	if way == "down" {
		_, _ = io.CopyN(conn, rand.Reader, n)
		return
	}
	_, _ = io.CopyN(io.Discard, r, n)
	_, _ = conn.Write([]byte{1})
}

// serveHTTP says which host each request was for.
func (w *world) serveHTTP(t *testing.T, in place) {
	t.Helper()
	server := &http.Server{
		ReadHeaderTimeout: patience,
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(rw, "for %s;", r.Host)
		}),
		ConnState: func(c net.Conn, s http.ConnState) {
			if s == http.StateNew {
				w.note("tcp", netip.MustParseAddrPort(c.LocalAddr().String()))
			}
		},
	}
	ln := listen(t.Context(), t, in, portHTTP)
	w.tasks.Go(func() { _ = server.Serve(ln) })
	t.Cleanup(func() { _ = server.Close() })
}

func serverTLS(tb testing.TB) *tls.Config {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
}

// servePackets4 answers datagrams from the address that they came to.
func (w *world) servePackets4(t *testing.T, in place, port int, handle func([]byte) []byte) {
	t.Helper()
	plain := listenPackets(t.Context(), t, in, "udp4", port)
	t.Cleanup(func() { _ = plain.Close() })
	conn := ipv4.NewPacketConn(plain)
	if err := conn.SetControlMessage(ipv4.FlagDst, true); err != nil {
		t.Fatal(err)
	}
	w.tasks.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, control, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			w.note("udp", addrPort(control.Dst, port))
			if out := handle(buf[:n]); out != nil {
				_, _ = conn.WriteTo(out, &ipv4.ControlMessage{Src: control.Dst}, from)
			}
		}
	})
}

func (w *world) servePackets6(t *testing.T, in place, port int, handle func([]byte) []byte) {
	t.Helper()
	plain := listenPackets(t.Context(), t, in, "udp6", port)
	t.Cleanup(func() { _ = plain.Close() })
	conn := ipv6.NewPacketConn(plain)
	if err := conn.SetControlMessage(ipv6.FlagDst, true); err != nil {
		t.Fatal(err)
	}
	w.tasks.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, control, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			w.note("udp", addrPort(control.Dst, port))
			if out := handle(buf[:n]); out != nil {
				_, _ = conn.WriteTo(out, &ipv6.ControlMessage{Src: control.Dst}, from)
			}
		}
	})
}

func addrPort(ip net.IP, port int) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port))
}

// name sets what is answered to questions about a name, one after the other.
func (w *world) name(name string, answers ...answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name] = answers
}

// timesAsked counts the questions for names that end in suffix.
func (w *world) timesAsked(suffix string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := 0
	for name, n := range w.asked {
		if strings.HasSuffix(name, suffix) {
			count += n
		}
	}
	return count
}

// serveQuestions answers by TCP.
func (w *world) serveQuestions(conn net.Conn) {
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, question); err != nil {
			return
		}
		out := w.reply(question, 1<<16-1)
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)); err != nil {
			return
		}
	}
}

// reply answers a question in at most size bytes.
func (w *world) reply(packet []byte, size int) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(packet); err != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	r := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	r.Answers = w.records(q)
	data, err := r.Pack()
	if err == nil && len(data) > size {
		r.Answers, r.Truncated = nil, true
		data, err = r.Pack()
	}
	if err != nil {
		return nil
	}
	return data
}

// records returns the next response for a name; a missing one stands for an
// address of the world.
func (w *world) records(q dnsmessage.Question) []dnsmessage.Resource {
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	if q.Type != dnsmessage.TypeA {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[name]++
	list := w.names[name]
	if len(list) == 0 {
		list = []answer{{addresses: []string{"93.184.215.99"}}}
	} else if len(list) > 1 {
		w.names[name] = list[1:]
	}
	var records []dnsmessage.Resource
	h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: list[0].ttl}
	for _, next := range list[0].alias {
		h.Type = dnsmessage.TypeCNAME
		target := dnsmessage.MustNewName(next + ".")
		records = append(records, dnsmessage.Resource{Header: h, Body: &dnsmessage.CNAMEResource{CNAME: target}})
		h.Name = target
	}
	for _, text := range list[0].addresses {
		h.Type = dnsmessage.TypeA
		records = append(records, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: netip.MustParseAddr(text).As4()}})
	}
	return records
}
