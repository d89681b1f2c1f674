package sandpit

// As returns an optional ability of a provider, an instance or a guest. Decorators
// show what is inside them by a method Unwrap() any, and As looks there, too.
func As[T any](v any) (T, bool) {
	for v != nil {
		if ability, ok := v.(T); ok {
			return ability, true
		}
		decorator, ok := v.(interface{ Unwrap() any })
		if !ok {
			break
		}
		v = decorator.Unwrap()
	}
	var none T
	return none, false
}
