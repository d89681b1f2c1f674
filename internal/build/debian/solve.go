package debian

import (
	"maps"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// basePackages are packages that make a system in which others can be installed, besides those
// that every system has. The first keeps away what would merge directories that are merged.
var basePackages = []string{"usr-is-merged", "apt"}

// solver chooses packages: first what must be, then what that needs, always the first
// alternative that there is. What excludes each other is left to apt, which looks at all
// of it again.
type solver struct {
	*index
	chosen map[string]*candidate
	queue  []*candidate
}

// solvePackages returns packages and all that they need, by name.
func (x *index) solvePackages(wanted []string) ([]Package, error) {
	s := &solver{index: x, chosen: map[string]*candidate{}}
	for _, name := range slices.Sorted(maps.Keys(x.versions)) {
		if newest := x.versions[name][0]; newest.essential {
			s.choosePackage(newest)
		}
	}
	for _, name := range basePackages {
		if list := x.versions[name]; len(list) > 0 {
			s.choosePackage(list[0])
		}
	}
	if err := s.chooseNeeded(); err != nil {
		return nil, err
	}
	for _, c := range s.chosen {
		c.First = true
	}
	for _, want := range wanted { // all, before anything is taken for what they need
		if err := s.choosePinned(want); err != nil {
			return nil, err
		}
	}
	if err := s.chooseNeeded(); err != nil {
		return nil, err
	}
	list := make([]Package, 0, len(s.chosen))
	for _, name := range slices.Sorted(maps.Keys(s.chosen)) {
		list = append(list, s.chosen[name].Package)
	}
	return list, nil
}

func (s *solver) choosePackage(c *candidate) {
	if s.chosen[c.Name] == nil {
		s.chosen[c.Name] = c
		s.queue = append(s.queue, c)
	}
}

// choosePinned chooses what somebody has asked for.
func (s *solver) choosePinned(text string) error {
	name, version, pinned := strings.Cut(text, "=")
	for _, c := range s.versions[name] {
		if !pinned || c.Version == version {
			if have := s.chosen[name]; have != nil && have != c {
				return sandpit.Errorf(sandpit.Invalid, "%s is needed in version %s, and wanted in another", name, have.Version)
			}
			s.choosePackage(c)
			return nil
		}
	}
	if len(s.versions[name]) == 0 && len(s.provided[name]) > 0 && !pinned {
		s.choosePackage(s.provided[name][0].candidate)
		return nil
	}
	err := sandpit.Errorf(sandpit.NotFound, "there is no package %s", text)
	if len(s.versions[name]) > 0 {
		err = sandpit.WithHint(err, "the newest version is "+s.versions[name][0].Version)
	}
	return err
}

// chooseNeeded chooses what the chosen ones need.
func (s *solver) chooseNeeded() error {
	for len(s.queue) > 0 {
		c := s.queue[0]
		s.queue = s.queue[1:]
		for _, need := range c.needs {
			if !s.meetNeed(need) {
				return sandpit.Errorf(sandpit.Invalid, "%s needs %.200s, which is not there", c.Name, need)
			}
		}
	}
	return nil
}

// meetNeed sees to it that one of several alternatives is chosen.
func (s *solver) meetNeed(need string) bool {
	var relations []relation
	for text := range strings.SplitSeq(need, "|") {
		relations = append(relations, parseRelation(text))
	}
	if slices.ContainsFunc(relations, s.isMet) {
		return true
	}
	for _, r := range relations {
		for _, c := range s.versions[r.name] {
			if s.chosen[c.Name] == nil && r.isMetBy(c.Version) {
				s.choosePackage(c)
				return true
			}
		}
		for _, p := range s.provided[r.name] {
			if s.chosen[p.Name] == nil && r.isMetByProvided(p.version) {
				s.choosePackage(p.candidate)
				return true
			}
		}
	}
	return false
}

func (s *solver) isMet(r relation) bool {
	if c := s.chosen[r.name]; c != nil && r.isMetBy(c.Version) {
		return true
	}
	return slices.ContainsFunc(s.provided[r.name], func(p provider) bool {
		return s.chosen[p.Name] == p.candidate && r.isMetByProvided(p.version)
	})
}

// relation is what one package says about another: "libc6 (>= 2.36)".
type relation struct{ name, operator, version string }

func parseRelation(text string) relation {
	name, rest, _ := strings.Cut(strings.TrimSpace(text), "(")
	name, _, _ = strings.Cut(strings.TrimSpace(name), ":") // libc6:any
	rest, _, _ = strings.Cut(rest, ")")
	rest = strings.TrimSpace(rest)
	operator, version := splitBefore(rest, func(r rune) bool { return !strings.ContainsRune("<>=", r) })
	return relation{name, operator, strings.TrimSpace(version)}
}

// parseProvided reads what a package provides: "python3-foo (= 1.2)".
func parseProvided(text string) (name, version string) {
	r := parseRelation(text)
	return r.name, r.version
}

// isMetBy reports whether a version will do.
func (r relation) isMetBy(version string) bool {
	c := compareVersions(version, r.version)
	switch r.operator {
	case "":
		return true
	case "<<":
		return c < 0
	case "<=":
		return c <= 0
	case "=":
		return c == 0
	case ">=":
		return c >= 0
	case ">>":
		return c > 0
	}
	return false
}

// isMetByProvided is allows for what another package provides, maybe in no version.
func (r relation) isMetByProvided(version string) bool {
	return r.operator == "" || version != "" && r.isMetBy(version)
}
