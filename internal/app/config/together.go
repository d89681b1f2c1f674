package config

import (
	"path/filepath"
	"slices"
	"strings"
)

// fillServer gives what nothing has set its usual place.
func (l *loader) fillServer() {
	if l.cfg.RuntimeDir != "" {
		setIfEmpty(&l.cfg.Server.Socket, filepath.Join(l.cfg.RuntimeDir, "sandpit.sock"))
	}
	// What root's server shows of the machine should take more than a connection; root has the socket.
	if !l.cfg.Explicit(KeyKeyless) && l.opts.UID == 0 {
		l.cfg.Server.Keyless = false
	}
}

// checkTogether looks at settings that must fit together.
func (l *loader) checkTogether() {
	s, q := l.cfg.Server, l.cfg.Queue
	l.checkTLS(s)
	l.checkNetwork()
	for _, key := range []Key{KeyScreenDeny, KeyScreenAsk, KeyScreenWarn, KeyScreenAllow} {
		if l.cfg.Explicit(key) && !l.cfg.Explicit(KeyCommandScreen) {
			l.addConflict(key, "has no effect without a screen; set sandbox.command_screen, to deny for example, or to off")
		}
	}
	if s.Listen == None && s.Socket == None {
		l.addConflict(KeyListen, "both server.listen and server.socket are \"none\", so no client could reach the server")
	}
	if q.Provider == QueueRedis && q.RedisURL == "" {
		l.addConflict(KeyQueueProvider, "is redis; say where it is with queue.redis_url")
	}
	if len(l.problems.List) == 0 && s.Burst < s.Rate && l.cfg.Explicit(KeyBurst) {
		l.addConflict(KeyBurst, "is below server.rate, which then cannot be reached")
	}
	l.cfg.Server.Burst = max(s.Burst, s.Rate)
}

func (l *loader) checkTLS(s Server) {
	switch {
	case s.TLSCert != "" && s.TLSKey == "":
		l.addConflict(KeyTLSCert, "needs server.tls_key, too")
	case s.TLSKey != "" && s.TLSCert == "":
		l.addConflict(KeyTLSKey, "needs server.tls_cert, too")
	case s.TLS == TLSFiles && s.TLSCert == "":
		l.addConflict(KeyTLS, "is files; say which with server.tls_cert and server.tls_key")
	case s.TLS != "" && s.TLS != TLSFiles && s.TLSCert != "":
		l.addConflict(KeyTLS, "is "+s.TLS+", and server.tls_cert names a certificate; leave one of them out")
	}
	if s.TLS == TLSAuto && (len(s.Names) == 0 || slices.ContainsFunc(s.Names, func(name string) bool { return strings.HasPrefix(name, "*") })) {
		l.addConflict(KeyTLS, "is auto; name the server in server.names, without \"*\"")
	}
	if s.TLS != "" && s.TLS != TLSOff && s.Listen == None {
		l.addConflict(KeyTLS, "TLS "+s.TLS+" needs an address, but server.listen is \"none\"")
	}
}

// addConflict adds a problem of an explicit setting.
func (l *loader) addConflict(key Key, text string) {
	l.problems.addProblem(Problem{Source: l.cfg.Sources[key], Key: key, Text: text})
}
