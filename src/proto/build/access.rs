//! Generates the access that each method and each kind of event requires of an API key.

use std::fmt::Write as _;

use protox::prost_reflect::DescriptorPool;

use crate::options::{bodies, camel, chosen};

/// # Panics
/// If a method lacks the option `access`, or a kind requires an access that cannot append.
pub fn generate(pool: &DescriptorPool) -> String {
    let mut code = String::from(
        "/// What a call of each method needs, by its path.\n\
         pub const METHODS: &[(&str, Access)] = &[\n",
    );
    let ours = |service: &protox::prost_reflect::ServiceDescriptor| {
        service.parent_file().package_name() == "treering.v1"
    };
    for service in pool.services().filter(ours) {
        for method in service.methods() {
            let name = method.full_name();
            let access = chosen(pool, &method.options(), "access").filter(|of| of != "UNSPECIFIED");
            let access = access.unwrap_or_else(|| panic!("{name} needs the option `access`"));
            let path = format!("/{}/{}", service.full_name(), method.name());
            let _ = writeln!(code, "({path:?}, Access::{}),", camel(&access));
        }
    }
    code += "];\n\
        /// Returns what appending an event of this kind needs, by whatever method.\n\
        #[must_use]\n\
        pub fn appended_with(kind: EventKind) -> Access {\n match kind {\n";
    for body in bodies(pool) {
        let access = chosen(pool, &body.message.options(), "appended_with");
        let access = access.as_deref().unwrap_or("WRITER");
        let allowed = ["WRITER", "APPROVER", "ADMIN"].contains(&access);
        assert!(allowed, "{}: {access} does not append", body.message.name());
        let access = camel(access);
        let _ = writeln!(
            code,
            "EventKind::{} => Access::{access},",
            body.message.name()
        );
    }
    code + "}\n}\n"
}
