// Command probe tries one thing with the network and says in one line what came of it.
package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// patience is how long an answer may take that must come, quick how long one is waited
// for that must not.
const (
	patience = 60 * time.Second
	quick    = 300 * time.Millisecond
)

func main() {
	verbs := map[string]func(args []string) (string, error){
		"tcp": stream, "udp": datagram, "tls": greet, "http": request, "dns": resolve, "ping": ping,
		"hold": hold, "burst": burst, "download": download, "upload": upload, "flood": flood, "serve": serve,
	}
	if len(os.Args) < 3 || verbs[os.Args[1]] == nil {
		fmt.Println("usage: probe VERB ADDRESS...")
		os.Exit(2)
	}
	text, err := verbs[os.Args[1]](os.Args[2:])
	if err != nil {
		text = "no: " + err.Error()
	}
	fmt.Println(text)
}

func dial(network, addr string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, addr, patience)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(patience))
}

// echoes expects that a connection sends back what it gets.
func echoes(conn io.ReadWriter) (string, error) {
	text := rand.Text()
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil {
		return "", err
	}
	if string(got) != text {
		return "", fmt.Errorf("got %q", got)
	}
	return "yes", nil
}

func stream(args []string) (string, error) {
	conn, err := dial("tcp", args[0])
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return echoes(conn)
}

// datagram sends again and again: a datagram may be lost. With a second argument it
// soon gives up.
func datagram(args []string) (string, error) {
	wait := patience
	if len(args) > 1 {
		wait = quick
	}
	conn, err := dial("udp", args[0])
	if err != nil {
		return "", err
	}
	defer conn.Close()
	got := make([]byte, 100)
	for end := time.Now().Add(wait); time.Now().Before(end); {
		if _, err := io.WriteString(conn, "hello"); err != nil {
			return "", err
		}
		if err := conn.SetReadDeadline(time.Now().Add(quick)); err != nil {
			return "", err
		}
		n, err := conn.Read(got)
		if err == nil {
			return map[bool]string{true: "yes", false: "other"}[string(got[:n]) == "hello"], nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return "", err
		}
	}
	return "", errors.New("silence")
}

// greet speaks TLS with the name of its second argument, "-" for none.
func greet(args []string) (string, error) {
	conn, err := dial("tcp", args[0])
	if err != nil {
		return "", err
	}
	defer conn.Close()
	client := tls.Client(conn, &tls.Config{ServerName: strings.Trim(args[1], "-"), InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	if err := client.HandshakeContext(context.Background()); err != nil {
		return "", err
	}
	return echoes(client)
}

// request sends its second argument, in which \r and \n are written out, and returns
// the whole answer.
func request(args []string) (string, error) {
	conn, err := dial("tcp", args[0])
	if err != nil {
		return "", err
	}
	defer conn.Close()
	text, err := strconv.Unquote(`"` + args[1] + `"`)
	if err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 64<<10))
	if len(answer) == 0 && err == nil {
		err = io.EOF
	}
	return strconv.Quote(string(answer)), err
}

// resolve asks the server of its first argument by the network of the second for the
// addresses of the third.
func resolve(args []string) (string, error) {
	r := net.Resolver{PreferGo: true, Dial: func(_ context.Context, _, _ string) (net.Conn, error) { return dial(args[1], args[0]) }}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found, err := r.LookupIP(ctx, "ip4", args[2])
	var known *net.DNSError
	for errors.As(err, &known) && known.IsTimeout && ctx.Err() == nil { // a question may be lost
		found, err = r.LookupIP(ctx, "ip4", args[2])
	}
	if err != nil {
		return "", err
	}
	var list []string
	for _, a := range found {
		list = append(list, a.String())
	}
	slices.Sort(list)
	return strings.Join(list, " "), nil
}

// ping sends echo requests by a socket that programs without rights may have. With a
// second argument it soon gives up.
func ping(args []string) (string, error) {
	wait := patience
	if len(args) > 1 {
		wait = quick
	}
	addr := net.ParseIP(args[0])
	network, own, kind, proto := "udp4", "0.0.0.0", icmp.Type(ipv4.ICMPTypeEcho), 1
	if addr.To4() == nil {
		network, own, kind, proto = "udp6", "::", ipv6.ICMPTypeEchoRequest, 58
	}
	conn, err := icmp.ListenPacket(network, own)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	text := rand.Text()
	buf := make([]byte, 1500)
	for end := time.Now().Add(wait); time.Now().Before(end); {
		packet, err := (&icmp.Message{Type: kind, Body: &icmp.Echo{ID: 7, Seq: 1, Data: []byte(text)}}).Marshal(nil)
		if err != nil {
			return "", err
		}
		if _, err := conn.WriteTo(packet, &net.UDPAddr{IP: addr}); err != nil {
			return "", err
		}
		if err := conn.SetReadDeadline(time.Now().Add(quick)); err != nil {
			return "", err
		}
		n, _, err := conn.ReadFrom(buf)
		if err != nil {
			continue
		}
		m, err := icmp.ParseMessage(proto, buf[:n])
		if err != nil {
			return "", err
		}
		if e, ok := m.Body.(*icmp.Echo); ok && string(e.Data) == text {
			return "yes", nil
		}
	}
	return "", errors.New("silence")
}

// hold opens so many connections and tells how many of them live side by side.
func hold(args []string) (string, error) {
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return "", err
	}
	open := 0
	for range count {
		conn, err := dial("tcp", args[0])
		if err != nil {
			continue
		}
		defer conn.Close()
		if _, err := echoes(conn); err == nil {
			open++
		}
	}
	return strconv.Itoa(open), nil
}

// burst opens so many connections as fast as it can, one after the other, and tells how
// many came to be and how many milliseconds that took.
func burst(args []string) (string, error) {
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return "", err
	}
	begin, made := time.Now(), 0
	for range count {
		if _, err := stream(args[:1]); err == nil {
			made++
		}
	}
	return fmt.Sprint(made, time.Since(begin).Milliseconds()), nil
}

// download reads so many bytes and tells how many milliseconds that took.
func download(args []string) (string, error) {
	size, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return "", err
	}
	conn, err := dial("tcp", args[0])
	if err != nil {
		return "", err
	}
	defer conn.Close()
	begin := time.Now()
	if _, err := fmt.Fprintf(conn, "down %d\n", size); err != nil {
		return "", err
	}
	_, err = io.CopyN(io.Discard, conn, size)
	return strconv.FormatInt(time.Since(begin).Milliseconds(), 10), err
}

// upload sends so many bytes and tells how many milliseconds it took until they had
// come.
func upload(args []string) (string, error) {
	size, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return "", err
	}
	conn, err := dial("tcp", args[0])
	if err != nil {
		return "", err
	}
	defer conn.Close()
	begin := time.Now()
	if _, err := fmt.Fprintf(conn, "up %d\n", size); err != nil {
		return "", err
	}
	if _, err := conn.Write(make([]byte, size)); err != nil {
		return "", err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return strconv.FormatInt(time.Since(begin).Milliseconds(), 10), err
}

// flood asks for so many names below one, as a tunnel through DNS would, and tells how
// many milliseconds that took.
func flood(args []string) (string, error) {
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return "", err
	}
	begin := time.Now()
	for i := range count {
		if _, err := resolve([]string{"10.0.2.2:53", args[2], fmt.Sprintf("%s%04d.%s.%s", strings.Repeat("x", 50), i, strings.Repeat("y", 60), args[0])}); err != nil {
			return "", err
		}
	}
	return strconv.FormatInt(time.Since(begin).Milliseconds(), 10), nil
}

// serve echoes at an address until it is killed.
func serve(args []string) (string, error) {
	ln, err := net.Listen("tcp", args[0])
	if err != nil {
		return "", err
	}
	for {
		conn, err := ln.Accept()
		if err != nil {
			return "", err
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	}
}
