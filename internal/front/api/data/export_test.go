package data

// Patterns returns the patterns of all calls.
func (s *Server) Patterns() (all []string) {
	for _, r := range s.routes() {
		all = append(all, r.pattern())
	}
	return all
}

// Described returns the patterns of all calls that are described.
func Described() (all []string) {
	for _, o := range operations() {
		all = append(all, o.method+" "+base+o.path)
	}
	return all
}
