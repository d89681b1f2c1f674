package network

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// Each resolver is asked twice, with this timeout.
const (
	askRounds  = 2
	askTimeout = 3 * time.Second
)

// maxRecords bounds the parsed records of a response.
const maxRecords = 512

// dnsRecords are the parts of a response that the gateway forwards.
type dnsRecords struct {
	answers, authorities []dnsmessage.Resource
}

// followAliases returns the names to which the aliases of the response lead from name.
func (r dnsRecords) followAliases(name string) []string {
	aliases := make(map[string]string)
	for _, a := range r.answers {
		if c, ok := a.Body.(*dnsmessage.CNAMEResource); ok {
			aliases[policy.Normal(a.Header.Name.String())] = policy.Normal(c.CNAME.String())
		}
	}
	var chain []string
	for range 32 { // bounds a cycle
		next, ok := aliases[name]
		if !ok {
			break
		}
		delete(aliases, name)
		chain = append(chain, next)
		name = next
	}
	return chain
}

// askResolvers sends a question to the resolvers, one after the other.
func (r *resolver) askResolvers(ctx context.Context, q dnsmessage.Question) (dnsmessage.RCode, dnsRecords, error) {
	err := errors.New("no resolver configured")
	for range askRounds {
		for _, upstream := range r.upstreams {
			var rcode dnsmessage.RCode
			var records dnsRecords
			rcode, records, err = r.askOne(ctx, upstream, q)
			if err == nil && rcode != dnsmessage.RCodeServerFailure && rcode != dnsmessage.RCodeRefused {
				return rcode, records, nil
			}
			if err == nil {
				err = fmt.Errorf("resolver %s: %s", upstream, rcode)
			}
			if ctx.Err() != nil {
				return 0, dnsRecords{}, ctx.Err()
			}
		}
	}
	return 0, dnsRecords{}, err
}

// askOne sends a question to one resolver, over TCP if the response is truncated.
func (r *resolver) askOne(ctx context.Context, to netip.AddrPort, q dnsmessage.Question) (dnsmessage.RCode, dnsRecords, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	id, packet, err := packQuestion(q)
	if err != nil {
		return 0, dnsRecords{}, err
	}
	for _, network := range []string{"udp", "tcp"} {
		var truncated bool
		rcode, records, cut, err := r.exchangeDNS(ctx, network, to, packet, id, q)
		if truncated = cut; err != nil {
			return 0, dnsRecords{}, err
		}
		if !truncated {
			return rcode, records, nil
		}
	}
	return 0, dnsRecords{}, fmt.Errorf("resolver %s: truncated answer", to)
}

// packQuestion encodes a new question. Of the sandbox's packet it uses only the name and the
// type.
func packQuestion(q dnsmessage.Question) (id uint16, packet []byte, err error) {
	var random [2]byte
	_, _ = rand.Read(random[:]) // never fails: crypto/rand ends the program instead
	id = binary.BigEndian.Uint16(random[:])
	opt, err := optResource()
	if err != nil {
		return 0, nil, err
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{q}, Additionals: []dnsmessage.Resource{opt},
	}
	packet, err = m.Pack()
	return id, packet, err
}

// exchangeDNS sends a question and reads until the response arrives.
func (r *resolver) exchangeDNS(ctx context.Context, network string, to netip.AddrPort, packet []byte, id uint16, q dnsmessage.Question) (dnsmessage.RCode, dnsRecords, bool, error) { //nolint:revive // all of them are the question
	conn, err := r.g.machine.DialResolver(ctx, network, to)
	if err != nil {
		return 0, dnsRecords{}, false, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	stream := network == "tcp"
	if stream {
		packet = append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...) //nolint:gosec // one question is small
	}
	if _, err := conn.Write(packet); err != nil {
		return 0, dnsRecords{}, false, err
	}
	for {
		answer, err := readAnswer(conn, stream)
		if err != nil {
			return 0, dnsRecords{}, false, err
		}
		h, records, ok := parseAnswer(answer, id, q)
		if ok {
			return h.RCode, records, h.Truncated, nil
		}
		if stream {
			return 0, dnsRecords{}, false, fmt.Errorf("resolver %s: not an answer", to)
		}
	}
}

func readAnswer(conn net.Conn, stream bool) ([]byte, error) {
	if !stream {
		buf := make([]byte, 1<<16)
		n, err := conn.Read(buf)
		return buf[:n], err
	}
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	buf := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(conn, buf)
	return buf, err
}

// parseAnswer parses the response to q. It returns false for any other packet.
func parseAnswer(packet []byte, id uint16, q dnsmessage.Question) (dnsmessage.Header, dnsRecords, bool) {
	var p dnsmessage.Parser
	var records dnsRecords
	h, err := p.Start(packet)
	if err != nil || !h.Response || h.ID != id {
		return h, records, false
	}
	asked, err := p.AllQuestions()
	if err != nil || len(asked) != 1 || asked[0].Type != q.Type || asked[0].Class != q.Class ||
		policy.Normal(asked[0].Name.String()) != policy.Normal(q.Name.String()) {
		return h, records, false
	}
	if h.Truncated {
		return h, records, true
	}
	for len(records.answers) < maxRecords {
		a, err := p.Answer()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil {
			return h, records, false
		}
		records.answers = append(records.answers, a)
	}
	for len(records.authorities) < maxRecords {
		a, err := p.Authority()
		if err != nil { // or the end; only the SOA record of a negative response is forwarded
			break
		}
		if a.Header.Type == dnsmessage.TypeSOA {
			records.authorities = append(records.authorities, a)
		}
	}
	return h, records, true
}

// MachineResolvers returns the resolvers of the machine, at most three, as its C library
// selects them.
func MachineResolvers(path string) ([]netip.AddrPort, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the machine's resolvers: %w", err)
	}
	var list []netip.AddrPort
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" || len(list) == 3 {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil {
			list = append(list, netip.AddrPortFrom(a, dnsPort))
		}
	}
	return list, nil
}
