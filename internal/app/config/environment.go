package config

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// alias is a variable of another program that stands for one of sandpit's.
type alias struct {
	name string
	// read converts its value. False: the value is invalid here, which is reported but
	// does not prevent a start, because the variable may be meant for other programs. Nil:
	// the value is treated like that of sandpit's own variable.
	read func(value string) (word, bool)
}

// sectionOf returns the section that a variable's name belongs to, and the rest of
// the name. All variables of a section must be known.
func sectionOf(name string) (section, rest string, ours bool) {
	for _, section := range ownSections() {
		if rest, ours := strings.CutPrefix(name, "SANDPIT_"+strings.ToUpper(section)+"_"); ours {
			return section, rest, true
		}
	}
	return "", "", false
}

func (l *loader) loadEnvironment() {
	before, noticed := len(l.problems.List), len(l.cfg.Notices)
	known := map[string]bool{"SANDPIT_CONFIG": true, "SANDPIT_REQUIRE": true}
	for _, s := range allSettings() {
		name := s.key.Variable()
		known[name] = true
		if value := l.env[name]; value != "" {
			l.applyWord(s.key, value, name)
			continue
		}
		l.applyAliases(s)
	}
	l.addressOf("SANDBOX_HOST", "SANDBOX_PORT")
	l.loadTraces()
	l.loadSystemd()
	for name, value := range l.env {
		if strings.HasPrefix(name, "SANDPIT_") && !known[name] && !strings.HasPrefix(name, "SANDPIT_TEST_") && !ofKubernetes(name, value) {
			l.unknownVariable(name)
		}
	}
	slices.SortFunc(l.problems.List[before:], func(a, b Problem) int { return cmp.Compare(a.Source, b.Source) })
	slices.Sort(l.cfg.Notices[noticed:])
}

// applyAliases takes the first variable of others that says something.
func (l *loader) applyAliases(s setting) {
	for _, a := range s.also {
		value := l.env[a.name]
		if value == "" {
			continue
		}
		if a.read != nil {
			w, ok := a.read(value)
			if !ok {
				l.addNotice("%s: %s makes no sense here and is ignored", a.name, quoteText(value))
				continue
			}
			value = string(w)
		}
		l.applyWord(s.key, value, a.name)
		return
	}
}

// addressOf takes the server's address from variables for its host and its port,
// unless one for the whole address is set.
func (l *loader) addressOf(hostName, portName string) {
	host, port := l.env[hostName], l.env[portName]
	if host == "" && port == "" || l.env[KeyURL.Variable()] != "" || l.env["AGENT_INFRA_URL"] != "" {
		return
	}
	host, port = cmp.Or(strings.Trim(host, "[]"), "localhost"), cmp.Or(port, "8090")
	if _, err := strconv.ParseUint(port, 10, 16); err != nil || !dnsPattern().MatchString(host) && net.ParseIP(host) == nil {
		l.addNotice("%s and %s are no address and are ignored", hostName, portName)
		return
	}
	source := hostName
	if l.env[hostName] == "" {
		source = portName
	}
	l.applyWord(KeyURL, "http://"+net.JoinHostPort(host, port), source)
}

// unknownVariable refuses what belongs to a section or is likely meant for one of
// ours. Other SANDPIT_ variables may mean something to other parts.
func (l *loader) unknownVariable(name string) {
	if section, rest, ours := sectionOf(name); ours {
		text := "unknown variable"
		if near := suggestName(rest, namesIn(section)); near != "" {
			text = fmt.Sprintf("unknown variable; did you mean %s?", Key(section+"."+near).Variable())
		}
		l.problems.addProblem(Problem{Source: toPrintable(name), Text: text})
		return
	}
	rest := strings.TrimPrefix(name, "SANDPIT_")
	for _, near := range append(namesIn(""), "config") {
		if editDistance(strings.ToLower(rest), near) <= min(2, len(near)/3) {
			l.problems.addProblem(Problem{
				Source: toPrintable(name), Text: fmt.Sprintf("unknown variable; did you mean %s?", Key(near).Variable()),
			})
			return
		}
	}
	l.addNotice("%s: unknown variable, ignored", toPrintable(name))
}

// kubernetes matches what Kubernetes sets in every container for a service, for
// instance one that is called sandpit or sandpit-server.
var kubernetes = pattern.New(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

func ofKubernetes(name, value string) bool {
	return kubernetes().MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
}

func (l *loader) addNotice(format string, args ...any) {
	l.cfg.Notices = append(l.cfg.Notices, strings.Map(toVisible, fmt.Sprintf(format, args...)))
}

// loadSystemd reads what systemd sets for a service.
func (l *loader) loadSystemd() {
	s := Systemd{Socket: l.env["NOTIFY_SOCKET"]}
	if s.Socket == "" {
		return
	}
	if us, err := strconv.ParseInt(l.env["WATCHDOG_USEC"], 10, 64); err == nil && us > 0 && us < int64(24*time.Hour/time.Microsecond) {
		s.Watchdog = time.Duration(us) * time.Microsecond
	}
	if pid, err := strconv.Atoi(l.env["WATCHDOG_PID"]); err == nil {
		s.PID = pid
	}
	l.cfg.Systemd = s
}
