package template

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// ParseDockerfile parses a Dockerfile with one stage. Args are values for its ARGs.
//
// Invalid: a syntax error; the error has the line. Unsupported: an instruction, or a form of
// one.
func ParseDockerfile(data []byte, args map[string]string) (Template, error) {
	if len(data) > maxFile {
		return Template{}, sandpit.Errorf(sandpit.Invalid, "a Dockerfile has at most %d bytes", maxFile)
	}
	d := &dockerfile{given: args, vars: map[string]string{}, args: map[string]string{}, shell: shellArgs("")[:2]}
	for _, l := range joinLines(string(data)) {
		d.line = l.number
		word, rest, _ := strings.Cut(l.text, " ")
		if err := d.addInstruction(strings.ToUpper(word), strings.TrimSpace(rest)); err != nil {
			return Template{}, sandpit.Errorf(sandpit.CodeOf(err), "line %d: %s: %w", l.number, strings.ToUpper(word), err)
		}
	}
	return d.t, d.t.Validate()
}

// instructionLine is one instruction.
type instructionLine struct {
	number int // of its first line
	text   string
}

// joinLines joins lines that end in a backslash, and removes comments.
func joinLines(text string) []instructionLine {
	var all []instructionLine
	var open *instructionLine
	for i, line := range strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n") {
		trimmed := strings.TrimSpace(strings.ReplaceAll(line, "\t", " "))
		if trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue
		}
		part, more := strings.CutSuffix(trimmed, `\`)
		if open == nil {
			all = append(all, instructionLine{number: i + 1})
			open = &all[len(all)-1]
			open.text = part
		} else {
			open.text += part
		}
		if !more {
			open = nil
		}
	}
	return all
}

// dockerfile is the state of parsing a Dockerfile.
type dockerfile struct {
	t     Template
	given map[string]string // values of the caller
	args  map[string]string // ARGs in the environment of commands
	vars  map[string]string // ARG and ENV, for the following instructions
	shell []string
	line  int
}

func (d *dockerfile) addInstruction(name, rest string) error {
	if rest == "" {
		return sandpit.Errorf(sandpit.Invalid, "the instruction has no arguments")
	}
	if d.t.From == "" && name != "FROM" && name != "ARG" {
		return sandpit.Errorf(sandpit.Invalid, "the first instruction must be FROM")
	}
	run := map[string]func(string) error{
		"FROM": d.setBase, "RUN": d.addRun, "COPY": d.addCopy, "ADD": d.addAdd, "ENV": d.addEnv, "ARG": d.addArgs, "WORKDIR": d.addWorkDir, "USER": d.addUser,
		"EXPOSE": d.addPorts, "CMD": d.setCommand, "ENTRYPOINT": d.setEntrypoint, "LABEL": d.addLabels, "SHELL": d.setShell,
	}[name]
	if run == nil {
		return sandpit.Errorf(sandpit.Unsupported, "unsupported instruction")
	}
	return run(rest)
}

func (d *dockerfile) addStep(s Step) {
	s.Line = d.line
	d.t.Steps = append(d.t.Steps, s)
}

func (d *dockerfile) setBase(rest string) error {
	if d.t.From != "" {
		return sandpit.Errorf(sandpit.Unsupported, "only one stage is supported")
	}
	words, err := d.splitWords(rest)
	if err != nil {
		return err
	}
	if len(words) != 1 && (len(words) != 3 || !strings.EqualFold(words[1], "as")) || strings.HasPrefix(words[0], "--") {
		return sandpit.Errorf(sandpit.Unsupported, "want only the name of an image")
	}
	d.t.From = sandpit.Image(words[0])
	d.vars = map[string]string{} // ARGs before FROM are for FROM
	return nil
}

var secretMount = pattern.New(`^--mount=type=secret,(?:id=([A-Za-z_][A-Za-z0-9_]*),env=([A-Za-z_][A-Za-z0-9_]*)|env=([A-Za-z_][A-Za-z0-9_]*))$`)

func (d *dockerfile) addRun(rest string) error {
	s := Step{RunEnv: maps.Clone(d.args)}
	for strings.HasPrefix(rest, "--") {
		flag, after, _ := strings.Cut(rest, " ")
		m := secretMount().FindStringSubmatch(flag)
		if m == nil || m[1] != m[2] {
			return sandpit.Errorf(sandpit.Unsupported, "unsupported flag %s; only --mount=type=secret,env=NAME is supported", flag)
		}
		s.Secrets = append(s.Secrets, m[1]+m[3])
		rest = strings.TrimSpace(after)
	}
	if strings.HasPrefix(rest, "<<") {
		return sandpit.Errorf(sandpit.Unsupported, "here-documents (<<) are not supported")
	}
	s.Run = d.parseCommand(rest)
	d.addStep(s)
	return nil
}

// parseCommand parses the list form or the shell form of a command.
func (d *dockerfile) parseCommand(rest string) []string {
	var list []string
	if strings.HasPrefix(rest, "[") && json.Unmarshal([]byte(rest), &list) == nil && len(list) > 0 {
		return list
	}
	return append(slices.Clone(d.shell), rest)
}

func (d *dockerfile) addAdd(rest string) error {
	for word := range strings.FieldsSeq(rest) {
		if strings.Contains(word, "://") || regexp.MustCompile(`\.(tar|tgz|tar\.[a-z0-9]+)"?,?$`).MatchString(word) {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "fetching and unpacking are not supported: %s", word), "use COPY, and unpack it with RUN")
		}
	}
	return d.addCopy(rest)
}

func (d *dockerfile) addCopy(rest string) error {
	c := Copy{}
	for strings.HasPrefix(rest, "--") {
		flag, after, _ := strings.Cut(rest, " ")
		if err := parseCopyFlag(&c, flag); err != nil {
			return err
		}
		rest = strings.TrimSpace(after)
	}
	var words []string
	if !strings.HasPrefix(rest, "[") || json.Unmarshal([]byte(rest), &words) != nil {
		var err error
		if words, err = d.splitWords(rest); err != nil {
			return err
		}
	}
	if len(words) < 2 {
		return sandpit.Errorf(sandpit.Invalid, "want a source and a destination")
	}
	last := len(words) - 1
	c.From, c.To = words[:last], words[last]
	d.addStep(Step{Copy: &c})
	return nil
}

func parseCopyFlag(c *Copy, flag string) error {
	name, value, _ := strings.Cut(flag, "=")
	var err error
	switch name {
	case "--chown":
		user, group, both := strings.Cut(value, ":")
		if c.UID, err = strconv.Atoi(user); err == nil && both {
			c.GID, err = strconv.Atoi(group)
		} else {
			c.GID = c.UID
		}
	case "--chmod":
		c.Mode, err = strconv.ParseInt(value, 8, 32)
	case "--from":
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "--from: builds have one stage"),
			"build the other stage as another template, or add its steps to this one")
	default:
		return sandpit.Errorf(sandpit.Unsupported, "unknown flag %s", name)
	}
	if err != nil || c.UID < 0 || c.GID < 0 || c.Mode < 0 || c.Mode > 0o7777 {
		return sandpit.Errorf(sandpit.Unsupported, "%s: want numbers", flag)
	}
	return nil
}

// parsePairs parses NAME=VALUE ..., or NAME VALUE.
func (d *dockerfile) parsePairs(rest string) (map[string]string, error) {
	words, err := d.splitWords(rest)
	if err != nil {
		return nil, err
	}
	set := map[string]string{}
	if !strings.Contains(words[0], "=") {
		name, value, found := strings.Cut(rest, " ")
		if !found {
			return nil, sandpit.Errorf(sandpit.Invalid, "want NAME=VALUE")
		}
		set[name], err = d.expandVariables(strings.TrimSpace(value))
		return set, err
	}
	for _, w := range words {
		name, value, found := strings.Cut(w, "=")
		if !found || name == "" {
			return nil, sandpit.Errorf(sandpit.Invalid, "%q: want NAME=VALUE", w)
		}
		set[name] = value
	}
	return set, nil
}

func (d *dockerfile) addEnv(rest string) error {
	set, err := d.parsePairs(rest)
	if err != nil {
		return err
	}
	maps.Copy(d.vars, set)
	d.addStep(Step{Env: set})
	return nil
}

func (d *dockerfile) addLabels(rest string) error {
	set, err := d.parsePairs(rest)
	if err != nil {
		return err
	}
	if d.t.Labels == nil {
		d.t.Labels = map[string]string{}
	}
	maps.Copy(d.t.Labels, set)
	return nil
}

func (d *dockerfile) addArgs(rest string) error {
	words, err := d.splitWords(rest)
	if err != nil {
		return err
	}
	for _, w := range words {
		name, value, has := strings.Cut(w, "=")
		if !sandpit.IsVariableName(name) {
			return sandpit.Errorf(sandpit.Invalid, "invalid name %q", name)
		}
		if given, ok := d.given[name]; ok {
			value, has = given, true
		}
		if _, isEnv := d.vars[name]; !has || isEnv && d.isEnv(name) {
			continue
		}
		d.vars[name] = value
		if d.t.From != "" {
			d.args[name] = value
		}
	}
	return nil
}

// isEnv reports whether ENV has set a name, which has precedence over ARG.
func (d *dockerfile) isEnv(name string) bool {
	return slices.ContainsFunc(d.t.Steps, func(s Step) bool { _, ok := s.Env[name]; return ok })
}

func (d *dockerfile) addWorkDir(rest string) error {
	dir, err := d.expandVariables(rest)
	d.addStep(Step{WorkDir: dir})
	return err
}

func (d *dockerfile) addUser(rest string) error {
	user, err := d.expandVariables(rest)
	d.addStep(Step{User: user})
	return err
}

func (d *dockerfile) addPorts(rest string) error {
	words, err := d.splitWords(rest)
	d.t.Ports = append(d.t.Ports, words...)
	return err
}

func (d *dockerfile) setCommand(rest string) error {
	d.t.Command = d.parseCommand(rest)
	return nil
}

func (d *dockerfile) setEntrypoint(rest string) error {
	d.t.Entrypoint = d.parseCommand(rest)
	return nil
}

func (d *dockerfile) setShell(rest string) error {
	var list []string
	if json.Unmarshal([]byte(rest), &list) != nil || len(list) == 0 {
		return sandpit.Errorf(sandpit.Invalid, `want a list such as ["/bin/bash", "-c"]`)
	}
	d.shell = list
	return nil
}
