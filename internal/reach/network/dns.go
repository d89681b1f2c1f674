package network

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

const (
	dnsPort         = 53
	dnsStreamIdle   = 30 * time.Second
	dnsDatagramIdle = 5 * time.Second
	// plainSize is the response size for a client without EDNS. askSize is the size that
	// the gateway announces to resolvers, and the bound of the sizes that clients announce.
	plainSize = 512
	askSize   = 4096
)

// resolver answers the sandbox's DNS questions by asking the machine's resolvers.
type resolver struct {
	g         *Gateway
	upstreams []netip.AddrPort
	room      chan struct{}
}

func newResolver(g *Gateway, upstreams []netip.AddrPort) *resolver {
	return &resolver{g: g, upstreams: upstreams, room: make(chan struct{}, maxQuestions)}
}

// serveStream answers questions over TCP until the client closes the connection.
func (r *resolver) serveStream(conn net.Conn) {
	for {
		if err := conn.SetReadDeadline(time.Now().Add(dnsStreamIdle)); err != nil {
			return
		}
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, question); err != nil {
			return
		}
		select {
		case r.room <- struct{}{}:
		case <-r.g.ctx.Done():
			return
		}
		answer := r.answerPacket(r.g.ctx, question, 1<<16-1)
		<-r.room
		if answer == nil {
			return // not a question
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil { //nolint:gosec // answer bounds it
			return
		}
	}
}

// serveDatagrams answers questions over UDP until there were none for a while.
func (r *resolver) serveDatagrams(conn net.Conn) {
	stop := context.AfterFunc(r.g.ctx, func() { _ = conn.Close() })
	defer stop()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	packet := make([]byte, askSize)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(dnsDatagramIdle)); err != nil {
			return
		}
		n, err := conn.Read(packet)
		if err != nil {
			return
		}
		if !mayPass(r.g.meter.send, n) {
			continue // counts as lost
		}
		question := append([]byte(nil), packet[:n]...)
		select {
		case r.room <- struct{}{}:
			tasks.Go(func() {
				defer func() { <-r.room }()
				if answer := r.answerPacket(r.g.ctx, question, 0); answer != nil && mayPass(r.g.meter.receive, len(answer)) {
					_, _ = conn.Write(answer) // the client repeats a lost question
				}
			})
		default: // counts as lost
		}
	}
}

// question is a client's DNS question.
type question struct {
	header dnsmessage.Header
	q      dnsmessage.Question
	name   string // in policy.Normal form
	size   int    // the largest response that the client accepts
	edns   bool
}

// parseQuestion parses a packet. It returns false for a packet that gets no response.
func parseQuestion(packet []byte) (question, bool) {
	var p dnsmessage.Parser
	h, err := p.Start(packet)
	if err != nil || h.Response {
		return question{}, false
	}
	all, err := p.AllQuestions()
	if err != nil || len(all) != 1 {
		return question{}, false
	}
	q := question{header: h, q: all[0], name: policy.Normal(all[0].Name.String()), size: plainSize}
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, true
	}
	for range 16 {
		r, err := p.AdditionalHeader()
		if err != nil {
			break
		}
		if r.Type == dnsmessage.TypeOPT {
			q.edns = true
			q.size = min(max(int(r.Class), plainSize), askSize)
		}
		if p.SkipAdditional() != nil {
			break
		}
	}
	return q, true
}

// answerPacket returns the response to a packet, or nil. The response has at most size bytes;
// size 0 means the client's size.
func (r *resolver) answerPacket(ctx context.Context, packet []byte, size int) []byte {
	q, ok := parseQuestion(packet)
	if !ok {
		return nil
	}
	if size == 0 {
		size = q.size
	}
	rcode, records := r.resolveQuestion(ctx, q)
	data, err := q.packAnswer(rcode, records, false)
	if err == nil && len(data) > size {
		data, err = q.packAnswer(rcode, dnsRecords{}, true) // the client then retries over TCP
	}
	if err != nil {
		data, err = q.packAnswer(dnsmessage.RCodeServerFailure, dnsRecords{}, false)
	}
	if err != nil {
		return nil
	}
	return data
}

const (
	reasonNoResolver    = "no resolver answered"
	reasonPrivateAnswer = "a private or special address in a DNS response"
)

// resolveQuestion decides about a question, asks the resolvers, and removes addresses from the
// response that the sandbox may not reach.
func (r *resolver) resolveQuestion(ctx context.Context, q question) (dnsmessage.RCode, dnsRecords) {
	if q.header.OpCode != 0 || q.q.Class != dnsmessage.ClassINET {
		return dnsmessage.RCodeNotImplemented, dnsRecords{}
	}
	rules := r.g.currentRules()
	v := rules.Resolve(q.name)
	if !v.Allowed {
		r.logDecision(q.name, "", v)
		return dnsmessage.RCodeNameError, dnsRecords{}
	}
	if q.q.Type == typeSVCB || q.q.Type == typeHTTPS {
		// These records have addresses, and keys that hide the name in TLS. Clients work
		// without them.
		return dnsmessage.RCodeSuccess, dnsRecords{}
	}
	if q.q.Type == dnsmessage.TypeAXFR || q.q.Type == dnsmessage.TypeALL {
		return dnsmessage.RCodeNotImplemented, dnsRecords{}
	}
	rcode, records, err := r.askResolvers(ctx, q.q)
	if err != nil {
		r.logDecision(q.name, "", policy.Verdict{Allowed: true, Reason: reasonNoResolver})
		return dnsmessage.RCodeServerFailure, dnsRecords{}
	}
	chain := records.followAliases(q.name)
	if v = rules.Resolve(q.name, chain...); !v.Allowed {
		r.logDecision(q.name, "", v)
		return dnsmessage.RCodeNameError, dnsRecords{}
	}
	r.logDecision(q.name, "", v)
	r.learnAddresses(rules, q.name, chain, &records)
	return rcode, records
}

const (
	typeSVCB  dnsmessage.Type = 64
	typeHTTPS dnsmessage.Type = 65
)

// learnAddresses records the addresses of name, and removes those that the sandbox may not
// reach.
func (r *resolver) learnAddresses(rules *policy.Rules, name string, chain []string, records *dnsRecords) {
	of := map[string]bool{name: true}
	for _, c := range chain {
		of[c] = true
	}
	kept := records.answers[:0]
	for _, a := range records.answers {
		a.Header.TTL = min(a.Header.TTL, uint32(maxTTL/time.Second))
		addr, isAddr := addressOf(a)
		if isAddr {
			if !rules.Answer(addr, r.g.machine.IsLocal(addr)) {
				r.logDecision(name, addr.String(), policy.Verdict{Reason: reasonPrivateAnswer})
				continue
			}
			if of[policy.Normal(a.Header.Name.String())] {
				r.g.names.learnName(name, addr, time.Duration(a.Header.TTL)*time.Second)
			}
		}
		kept = append(kept, a)
	}
	records.answers = kept
}

func addressOf(r dnsmessage.Resource) (netip.Addr, bool) {
	switch body := r.Body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(body.A), true
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(body.AAAA).Unmap(), true
	}
	return netip.Addr{}, false
}

func (r *resolver) logDecision(name, address string, v policy.Verdict) {
	if name == "" {
		name = "."
	}
	r.g.log.addDecision(sandpit.NetworkDecision{Protocol: "dns", Address: address, Name: name, Allowed: v.Allowed, Reason: v.Reason})
}

// packAnswer encodes a response.
func (q question) packAnswer(rcode dnsmessage.RCode, records dnsRecords, truncated bool) ([]byte, error) {
	m := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: q.header.ID, Response: true, RecursionDesired: q.header.RecursionDesired, RecursionAvailable: true,
			CheckingDisabled: q.header.CheckingDisabled, RCode: rcode, Truncated: truncated, OpCode: q.header.OpCode,
		},
		Questions: []dnsmessage.Question{q.q}, Answers: records.answers, Authorities: records.authorities,
	}
	if q.edns {
		opt, err := optResource()
		if err != nil {
			return nil, err
		}
		m.Additionals = append(m.Additionals, opt)
	}
	return m.Pack()
}

func optResource() (dnsmessage.Resource, error) {
	var h dnsmessage.ResourceHeader
	if err := h.SetEDNS0(askSize, dnsmessage.RCodeSuccess, false); err != nil {
		return dnsmessage.Resource{}, err
	}
	return dnsmessage.Resource{Header: h, Body: &dnsmessage.OPTResource{}}, nil
}
